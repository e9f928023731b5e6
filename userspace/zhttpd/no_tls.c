// SPDX-License-Identifier: GPL-2.0-or-later
/* zhttpd without TLS: it is linked statically, which makes its restarts faster. */
#include "tls.h"

void tls_files(const char *cert, const char *key)
{
	(void)key;
	die("-C %s: built without TLS: zhttpd-tls has it", cert);
}

void tls_start(void)
{
}

enum tls_result tls_handshake(struct tls_handshake **h, int fd)
{
	(void)h;
	(void)fd;
	return TLS_FAILED;
}

void tls_drop(struct tls_handshake **h)
{
	(void)h;
}
