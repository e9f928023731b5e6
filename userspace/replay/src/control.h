/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What replayctl and Prometheus ask for */
#ifndef REPLAY_CONTROL_H
#define REPLAY_CONTROL_H

#include "http.h"

/* @arg: the server */
void control_page(void *arg, bool ready, const char *method, const char *path, struct page *page);

#endif
