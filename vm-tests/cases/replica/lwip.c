// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A client whose TCP is lwIP's: lwip INTERFACE OWN-ADDRESS OWN-PORT ADDRESS PORT.
 *
 * What comes from stdin is sent, what arrives goes to stdout. While nobody reads that, the window closes. It has an
 * interface of Linux beside Linux, by a packet socket, with addresses of its own. When its connection is over it stays,
 * as a kernel does, until it is killed. It ends with 1 when it is reset, and when it has given up.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <lwip/etharp.h>
#include <lwip/ethip6.h>
#include <lwip/inet_chksum.h>
#include <lwip/init.h>
#include <lwip/tcp.h>
#include <lwip/timeouts.h>
#include <netif/ethernet.h>

#define FRAME	1514

struct packet {
	struct virtio_net_hdr head;
	uint8_t frame[FRAME];
} __attribute__((packed));

static int device;
static struct netif netif;
static struct tcp_pcb *pcb;
static struct pbuf *arrived;			/* and not written yet */
static bool connected, sent_all, got_all, told;

static void __attribute__((noreturn)) die(const char *what)
{
	fprintf(stderr, "lwip: %s\n", what);
	exit(1);
}

static void check(bool good, const char *what)
{
	if (!good)
		die(what);
}

static err_t transmit(struct netif *to, struct pbuf *p)
{
	struct packet packet = { 0 };
	u16_t len = pbuf_copy_partial(p, packet.frame, FRAME, 0);

	(void)to;
	/* One that is lost is sent again */
	return write(device, &packet, sizeof(packet.head) + len) < 0 ? ERR_IF : ERR_OK;
}

static void receive(void)
{
	struct packet packet;
	ssize_t len = read(device, &packet, sizeof(packet)) - sizeof(packet.head);
	size_t start = packet.head.csum_start, at = start + packet.head.csum_offset;
	struct pbuf *p;
	u16_t sum;

	if (len <= 0)
		return;
	/* What a network card would have done */
	if (packet.head.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM && at + sizeof(sum) <= (size_t)len) {
		sum = inet_chksum(packet.frame + start, len - start);
		memcpy(packet.frame + at, &sum, sizeof(sum));
	}
	p = pbuf_alloc(PBUF_RAW, len, PBUF_RAM);
	if (p && pbuf_take(p, packet.frame, len) == ERR_OK && netif.input(p, &netif) == ERR_OK)
		return;
	if (p)
		pbuf_free(p);
}

/* What is for this MAC address, or for many; Linux has the others */
static void filter(const uint8_t *mac)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 1, 2, 0),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 2),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)mac[2] << 24 | mac[3] << 16 | mac[4] << 8 | mac[5], 0, 1),
		BPF_STMT(BPF_RET | BPF_K, 0xffff),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(*code), code };

	check(!setsockopt(device, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), "filter");
}

static err_t plug(struct netif *n)
{
	n->linkoutput = transmit;
	n->output = etharp_output;
	n->output_ip6 = ethip6_output;
	n->mtu = 1500;
	n->hwaddr_len = 6;
	n->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET | NETIF_FLAG_MLD6 | NETIF_FLAG_UP | NETIF_FLAG_LINK_UP;
	return ERR_OK;
}

static void attach(const char *interface, const ip_addr_t *own)
{
	struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_protocol = lwip_htons(ETH_P_ALL),
				  .sll_ifindex = if_nametoindex(interface) };
	ip4_addr_t none = { 0 }, mask, address = IP_IS_V6(own) ? none : *ip_2_ip4(own);
	const int one = 1;
	s8_t index;

	device = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0);
	check(device >= 0 && to.sll_ifindex && !setsockopt(device, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one)) &&
	      !setsockopt(device, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one)), "no such interface");
	IP4_ADDR(&mask, 255, 255, 255, 0);
	check(netif_add(&netif, &address, &mask, &none, NULL, plug, ethernet_input), "netif_add");
	memcpy(netif.hwaddr, (uint8_t []){ 2, 0 }, 2);
	memcpy(netif.hwaddr + 2, IP_IS_V6(own) ? &ip_2_ip6(own)->addr[3] : &ip_2_ip4(own)->addr, 4);
	filter(netif.hwaddr);
	check(!bind(device, (struct sockaddr *)&to, sizeof(to)), "bind");
	if (IP_IS_V6(own)) {
		netif_create_ip6_linklocal_address(&netif, 1);
		netif_ip6_addr_set_state(&netif, 0, IP6_ADDR_PREFERRED);
		check(netif_add_ip6_address(&netif, ip_2_ip6(own), &index) == ERR_OK, "netif_add_ip6_address");
		netif_ip6_addr_set_state(&netif, index, IP6_ADDR_PREFERRED);
	}
	netif_set_default(&netif);
}

static void on_error(void *arg, err_t err)
{
	(void)arg;
	pcb = NULL;
	if (err != ERR_CLSD)
		die(err == ERR_RST ? "reset" : lwip_strerr(err));
}

static err_t on_data(void *arg, struct tcp_pcb *of, struct pbuf *p, err_t err)
{
	(void)arg;
	(void)of;
	(void)err;
	if (!p)
		got_all = true;
	else if (arrived)
		pbuf_cat(arrived, p);
	else
		arrived = p;
	return ERR_OK;
}

static err_t on_connected(void *arg, struct tcp_pcb *of, err_t err)
{
	(void)arg;
	(void)of;
	connected = err == ERR_OK;
	return ERR_OK;
}

static void pass_on(void)
{
	while (arrived) {
		ssize_t n = write(STDOUT_FILENO, arrived->payload, arrived->len);

		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0)
			n = arrived->len;	/* nobody reads any more */
		if (pcb && !(sent_all && got_all))
			tcp_recved(pcb, n);
		arrived = pbuf_free_header(arrived, n);
	}
	if (got_all && !told)
		shutdown(STDOUT_FILENO, SHUT_WR);
	told = got_all;
}

static bool may_take(void)
{
	return pcb && connected && !sent_all && tcp_sndbuf(pcb) && tcp_sndqueuelen(pcb) < TCP_SND_QUEUELEN / 2;
}

static void take(void)
{
	char data[4096];
	u16_t room = tcp_sndbuf(pcb);
	ssize_t n = read(STDIN_FILENO, data, room < sizeof(data) ? room : sizeof(data));

	if (n > 0)
		check(tcp_write(pcb, data, n, TCP_WRITE_FLAG_COPY) == ERR_OK && tcp_output(pcb) == ERR_OK, "tcp_write");
	sent_all = !n;
	if (sent_all)
		check(tcp_shutdown(pcb, 0, 1) == ERR_OK, "tcp_shutdown");
}

int main(int argc, char **argv)
{
	ip_addr_t own, service;

	check(argc == 6 && ipaddr_aton(argv[2], &own) && ipaddr_aton(argv[4], &service),
	      "usage: lwip INTERFACE OWN-ADDRESS OWN-PORT ADDRESS PORT");
	signal(SIGPIPE, SIG_IGN);
	fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
	fcntl(STDOUT_FILENO, F_SETFL, O_NONBLOCK);
	lwip_init();
	attach(argv[1], &own);
	pcb = tcp_new_ip_type(IP_GET_TYPE(&own));
	/* Points are where one host has what the other one lacks: what is sent must not wait for an acknowledgment */
	tcp_nagle_disable(pcb);
	tcp_err(pcb, on_error);
	tcp_recv(pcb, on_data);
	check(tcp_bind(pcb, &own, atoi(argv[3])) == ERR_OK &&
	      tcp_connect(pcb, &service, atoi(argv[5]), on_connected) == ERR_OK, "tcp_connect");
	for (;;) {
		struct pollfd fds[] = {
			{ .fd = device, .events = POLLIN },
			{ .fd = may_take() ? STDIN_FILENO : -1, .events = POLLIN },
			{ .fd = arrived ? STDOUT_FILENO : -1, .events = POLLOUT },
		};

		poll(fds, 3, sys_timeouts_sleeptime());
		if (fds[0].revents)
			receive();
		sys_check_timeouts();
		if (fds[1].revents && pcb)
			take();
		pass_on();
	}
}
