/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef RUN_H
#define RUN_H

#include "generation.h"

/* perdurectl run: does not return when the program runs. */
int run(int argc, char **argv);

/* The word that names the program in the arguments that its generations are registered with; NULL: they are the program's own. */
char **run_program(char **argv);

/* From the same arguments: what the program was started with. False: it is not by "run", or keeps all that it has (--keep). */
bool run_start(char **argv, struct start *s);

#endif
