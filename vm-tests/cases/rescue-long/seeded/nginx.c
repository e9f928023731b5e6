// SPDX-License-Identifier: GPL-2.0-or-later
/* nginx with a parser that faults: it is asked for /?TEXT. */
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "parse.h"

static ngx_int_t handle(ngx_http_request_t *r)
{
	ngx_str_t type = ngx_string("text/plain");
	ngx_http_complex_value_t answer = { 0 };
	u_char text[64];
	long long n = seeded_parse((char *)r->args.data, r->args.len);

	if (n < 0)
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	answer.value.data = text;
	answer.value.len = ngx_sprintf(text, "%P %L\n", ngx_pid, (int64_t)n) - text;
	return ngx_http_send_response(r, NGX_HTTP_OK, &type, &answer);
}

static ngx_int_t add_handler(ngx_conf_t *cf)
{
	ngx_http_core_main_conf_t *conf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
	ngx_http_handler_pt *handler = ngx_array_push(&conf->phases[NGX_HTTP_CONTENT_PHASE].handlers);

	if (!handler)
		return NGX_ERROR;
	*handler = handle;
	return NGX_OK;
}

static ngx_http_module_t context = { .postconfiguration = add_handler };

ngx_module_t seeded_nginx = { NGX_MODULE_V1, &context, NULL, NGX_HTTP_MODULE, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
			      NGX_MODULE_V1_PADDING };
