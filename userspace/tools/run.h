/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef RUN_H
#define RUN_H

/* perdurectl run: does not return when the program runs. */
int run(int argc, char **argv);

#endif
