// SPDX-License-Identifier: GPL-2.0-or-later
/* Tells the neighbours on an interface that an address is here now: they may know it as another host's */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/icmp6.h>
#include <netinet/if_ether.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <string.h>
#include <sys/ioctl.h>
#include <syslog.h>
#include <unistd.h>

#include "takeoverd.h"

static int announce_4(const struct endpoint *at, int ifindex, const uint8_t mac[ETH_ALEN])
{
	struct sockaddr_ll everyone = {
		.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ARP), .sll_ifindex = ifindex, .sll_halen = ETH_ALEN,
	};
	struct ether_arp arp = {
		.ea_hdr = { htons(ARPHRD_ETHER), htons(ETH_P_IP), ETH_ALEN, 4, htons(ARPOP_REQUEST) },
	};
	int fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0), err;

	memset(everyone.sll_addr, 0xff, ETH_ALEN);
	memcpy(arp.arp_sha, mac, ETH_ALEN);
	memcpy(arp.arp_spa, at->address, 4);
	memcpy(arp.arp_tpa, at->address, 4);
	err = fd < 0 || sendto(fd, &arp, sizeof(arp), 0, (struct sockaddr *)&everyone, sizeof(everyone)) < 0;
	if (fd >= 0)
		close(fd);
	return err;
}

static int announce_6(const struct endpoint *at, int ifindex, const uint8_t mac[ETH_ALEN])
{
	struct sockaddr_in6 everyone = { .sin6_family = AF_INET6, .sin6_scope_id = ifindex };
	struct {
		struct nd_neighbor_advert head;
		struct nd_opt_hdr option;
		uint8_t mac[ETH_ALEN];
	} advert = {
		.head.nd_na_type = ND_NEIGHBOR_ADVERT, .head.nd_na_flags_reserved = ND_NA_FLAG_OVERRIDE, .option = { ND_OPT_TARGET_LINKADDR, 1 },
	};
	const int hops = 255;
	int fd = socket(AF_INET6, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMPV6), err;

	inet_pton(AF_INET6, "ff02::1", &everyone.sin6_addr);
	memcpy(&advert.head.nd_na_target, at->address, 16);
	memcpy(advert.mac, mac, ETH_ALEN);
	err = fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, &hops, sizeof(hops)) ||
	      sendto(fd, &advert, sizeof(advert), 0, (struct sockaddr *)&everyone, sizeof(everyone)) < 0;
	if (fd >= 0)
		close(fd);
	return err;
}

void announce(const struct endpoint *at, const char *interface)
{
	const int ifindex = if_nametoindex(interface);
	struct ifreq card;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), err;

	memset(&card, 0, sizeof(card));
	strncpy(card.ifr_name, interface, sizeof(card.ifr_name) - 1);
	err = fd < 0 || ioctl(fd, SIOCGIFHWADDR, &card);
	if (fd >= 0)
		close(fd);
	/* Others have no neighbours */
	if (!err && card.ifr_hwaddr.sa_family == ARPHRD_ETHER)
		err = (at->family == AF_INET ? announce_4 : announce_6)(at, ifindex, (const uint8_t *)card.ifr_hwaddr.sa_data);
	if (err)
		say(LOG_ERR, "%s on %s: the neighbours are not told: %s", endpoint_text(at), interface, strerror(errno));
}
