/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef UPGRADE_H
#define UPGRADE_H

/* perdurectl restart, perdurectl upgrade */
int upgrade(int argc, char **argv);

#endif
