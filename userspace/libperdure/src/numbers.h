/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* System call numbers, as in kernel-patches/SYSCALLS: the same on every architecture. */
#ifndef PERDURE_NUMBERS_H
#define PERDURE_NUMBERS_H

#include <sys/syscall.h>

#ifndef __NR_reregist
#define __NR_reregist	500
#endif
#ifndef __NR_getreginfo
#define __NR_getreginfo	501
#endif
#ifndef __NR_hread
#define __NR_hread	502
#endif
#ifndef __NR_lwrite
#define __NR_lwrite	503
#endif
#ifndef __NR_getiolog
#define __NR_getiolog	504
#endif
#ifndef __NR_lsendfile
#define __NR_lsendfile	505
#endif
#ifndef __NR_restartctl
#define __NR_restartctl	506
#endif
#ifndef __NR_rescue
#define __NR_rescue	507
#endif

#endif
