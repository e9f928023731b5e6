// SPDX-License-Identifier: GPL-2.0-or-later
/* A module of Apache with mistakes, one for each path: what rescue points are to mend. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <apr_strings.h>
#include <httpd.h>
#include <http_config.h>
#include <http_log.h>
#include <http_protocol.h>

static char counter[32];
static unsigned int served;

static __attribute__((noinline)) int copy_in(const char *from, size_t n)
{
	char to[16];

	memcpy(to, from, n);
	__asm__ volatile("" : : "r"(to) : "memory");
	return to[0];
}

static int handle(request_rec *r)
{
	const char *what = r->uri;
	char *volatile p;

	if (!r->handler || strcmp(r->handler, "fault"))
		return DECLINED;
	/* What is left half done when it faults */
	served++;
	strcpy(counter, "half done");
	apr_pool_userdata_set(r, "fault", NULL, r->connection->pool);
	if (strstr(what, "/null")) {
		*(volatile char *)NULL = 1;
	} else if (strstr(what, "/overflow")) {
		/* A length from the request, as in CVE-2002-0392 */
		return copy_in(what, 200);
	} else if (strstr(what, "/twice")) {
		p = malloc(64);
		free(p);
		free(p);
	} else if (strstr(what, "/late")) {
		/* Its client has got half of an answer */
		ap_set_content_type(r, "text/plain");
		ap_rputs("half done\n", r);
		ap_rflush(r);
		*(volatile char *)NULL = 1;
	} else if (strstr(what, "/abort")) {
		abort();
	} else if (strstr(what, "/divide")) {
		return 100 / (int)strlen(strstr(what, "/divide") + strlen("/divide"));
	}
	apr_snprintf(counter, sizeof(counter), "%u", served);
	ap_set_content_type(r, "text/plain");
	ap_rprintf(r, "%d %s\n", (int)getpid(), counter);
	return OK;
}

static void hooks(apr_pool_t *pool)
{
	(void)pool;
	ap_hook_handler(handle, NULL, NULL, APR_HOOK_MIDDLE);
}

AP_DECLARE_MODULE(fault) = { STANDARD20_MODULE_STUFF, NULL, NULL, NULL, NULL, NULL, hooks, 0 };
