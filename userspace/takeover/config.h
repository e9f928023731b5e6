/* SPDX-License-Identifier: GPL-2.0-or-later */
/* /etc/perdure/takeover.conf */
#ifndef TAKEOVER_CONFIG_H
#define TAKEOVER_CONFIG_H

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>

#include "wire.h"

#define ERROR_MAX	512
#define KEY_SIZE	16
#define NAME_SIZE	64

union address {
	struct sockaddr any;
	struct sockaddr_storage room;
};

struct service_config {
	char name[NAME_SIZE];
	struct endpoint at;
	bool backup;			/* what it is at first */
	bool manage_address;
	bool join;			/* old connections get copies */
	bool has_key, has_role;
	uint32_t given;			/* options that may stand there once, while it is read */
	uint8_t key[KEY_SIZE];
	uint64_t patience;		/* ns */
	char interface[IF_NAMESIZE];
	union address peer, peer_log;
	struct service_config *next;
};

struct config {
	char *name, *store_dir, *control, *group;
	union address log_listen, metrics;
	uint64_t store_limit, arbitrate;
	struct service_config *services;
};

/* 0, or -1 and @error says what is wrong, and where */
int config_read(struct config *config, const char *path, char error[ERROR_MAX]);
void config_free(struct config *config);

/* A service as it was in the file, with its key, and without its name: for who finds it taken out of the file. -1: @f has failed */
int config_keep(const struct service_config *s, FILE *f);
/* NULL: nobody has kept it at @path */
struct service_config *config_kept(const char *path, const char *name);

/* "192.0.2.1", "2001:db8::1", "fe80::1%eth0"; with a port as "192.0.2.1:80", "[2001:db8::1]:80" */
bool address_parse(const char *text, bool port, union address *address);
struct endpoint endpoint_of(const union address *address);
/* Why it cannot be one host's, or NULL */
const char *address_unfit(const union address *address);
/* The way back */
const char *address_text(const union address *address, bool port);
const char *endpoint_text(const struct endpoint *at);

#endif
