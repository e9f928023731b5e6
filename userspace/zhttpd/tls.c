// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The handshake of TLS. When it is over both keys are in the socket, and what is left here is freed: the connection is a descriptor
 * that is read and written as any other, by this generation and the next.
 */
#include "tls.h"

#include <errno.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/ssl.h>
#include <perdure.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SOL_TLS
#define SOL_TLS		282
#endif

#define SECRET_MAX	64

struct tls_handshake {
	SSL *ssl;
	unsigned char secret[SECRET_MAX];	/* of what the client sends, by TLS 1.3 */
	size_t secret_len;
};

static const char *cert_file, *key_file;
static SSL_CTX *ctx;

/* The first error that OpenSSL has noted */
static const char *reason(void)
{
	unsigned long error = ERR_peek_error();
	const char *text = ERR_SYSTEM_ERROR(error) ? strerror(ERR_GET_REASON(error)) : ERR_reason_error_string(error);

	return text ? text : "unknown error";
}

/* Sockets can have TLS when they are connected; others are asked whether they would. */
static void ask_kernel(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || (setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", 3) && errno != ENOTCONN))
		die("this kernel has no TLS (CONFIG_TLS; or load its module: modprobe tls): %s", strerror(errno));
	close(fd);
}

/* The only way to this secret; what is after the second space is it, in hexadecimal digits. */
static void note_secret(const SSL *ssl, const char *line)
{
	struct tls_handshake *h = SSL_get_app_data(ssl);
	unsigned char *secret;
	long len;

	if (!h || strncmp(line, "CLIENT_TRAFFIC_SECRET_0 ", 24))
		return;
	secret = OPENSSL_hexstr2buf(strrchr(line, ' ') + 1, &len);
	if (secret && len <= SECRET_MAX) {
		memcpy(h->secret, secret, len);
		h->secret_len = len;
	}
	if (secret)
		OPENSSL_clear_free(secret, len);
}

static SSL_CTX *load(void)
{
	SSL_CTX *new = SSL_CTX_new(TLS_server_method());

	if (!new || !SSL_CTX_set_min_proto_version(new, TLS1_2_VERSION) ||
	    /* What the kernel has */
	    !SSL_CTX_set_ciphersuites(new, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") ||
	    !SSL_CTX_set_cipher_list(new, "ECDHE+AESGCM:ECDHE+CHACHA20") ||
	    SSL_CTX_use_certificate_chain_file(new, cert_file) != 1 ||
	    SSL_CTX_use_PrivateKey_file(new, key_file, SSL_FILETYPE_PEM) != 1) {
		SSL_CTX_free(new);
		return NULL;
	}
	SSL_CTX_set_options(new, SSL_OP_ENABLE_KTLS | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
	SSL_CTX_set_keylog_callback(new, note_secret);
	return new;
}

void tls_files(const char *cert, const char *key)
{
	cert_file = cert;
	key_file = key ? key : cert;
}

void tls_start(void)
{
	ask_kernel();
	ctx = load();
	if (!ctx)
		die("cannot use the certificate %s with the key %s: %s", cert_file, key_file, reason());
}

/* HKDF-Expand-Label() of RFC 8446, without a context */
static bool expand(const struct tls_handshake *h, const char *label, unsigned char *out, size_t len)
{
	const EVP_MD *md = SSL_CIPHER_get_handshake_digest(SSL_get_current_cipher(h->ssl));
	EVP_PKEY_CTX *kdf = EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, NULL);
	unsigned char info[32] = { 0, len, 6 + strlen(label), 't', 'l', 's', '1', '3', ' ' };
	size_t n = 9 + strlen(label) + 1;		/* and the length of the context, 0 */
	bool good;

	memcpy(info + 9, label, strlen(label));
	good = kdf && EVP_PKEY_derive_init(kdf) == 1 && EVP_PKEY_CTX_set_hkdf_mode(kdf, EVP_PKEY_HKDEF_MODE_EXPAND_ONLY) == 1 &&
	       EVP_PKEY_CTX_set_hkdf_md(kdf, md) == 1 && EVP_PKEY_CTX_set1_hkdf_key(kdf, h->secret, h->secret_len) == 1 &&
	       EVP_PKEY_CTX_add1_hkdf_info(kdf, info, n) == 1 && EVP_PKEY_derive(kdf, out, &len) == 1;
	EVP_PKEY_CTX_free(kdf);
	return good;
}

/*
 * OpenSSL before 3.2 gives the kernel the keys of TLS 1.3 only for sending. It has read no further than the end of the handshake, so
 * the client's next record is number 0.
 */
static void receive_by_kernel(const struct tls_handshake *h)
{
	unsigned char iv[12], *key, *salt, *rest;
	size_t key_len, salt_len = 4;
	union {
		struct tls_crypto_info info;
		struct tls12_crypto_info_aes_gcm_128 gcm128;
		struct tls12_crypto_info_aes_gcm_256 gcm256;
		struct tls12_crypto_info_chacha20_poly1305 chacha;
	} k = { .info.version = TLS_1_3_VERSION };
	socklen_t size;

	if (SSL_version(h->ssl) != TLS1_3_VERSION || !h->secret_len || SSL_has_pending(h->ssl))
		return;
	switch (SSL_CIPHER_get_protocol_id(SSL_get_current_cipher(h->ssl))) {
	case 0x1301:
		k.info.cipher_type = TLS_CIPHER_AES_GCM_128;
		size = sizeof(k.gcm128);
		key = k.gcm128.key;
		key_len = sizeof(k.gcm128.key);
		salt = k.gcm128.salt;
		rest = k.gcm128.iv;
		break;
	case 0x1302:
		k.info.cipher_type = TLS_CIPHER_AES_GCM_256;
		size = sizeof(k.gcm256);
		key = k.gcm256.key;
		key_len = sizeof(k.gcm256.key);
		salt = k.gcm256.salt;
		rest = k.gcm256.iv;
		break;
	case 0x1303:
		k.info.cipher_type = TLS_CIPHER_CHACHA20_POLY1305;
		size = sizeof(k.chacha);
		key = k.chacha.key;
		key_len = sizeof(k.chacha.key);
		salt = rest = k.chacha.iv;
		salt_len = 0;
		break;
	default:
		return;
	}
	if (expand(h, "key", key, key_len) && expand(h, "iv", iv, sizeof(iv))) {
		/* The kernel has the beginning of it in a place of its own, for some */
		memcpy(salt, iv, salt_len);
		memcpy(rest, iv + salt_len, sizeof(iv) - salt_len);
		setsockopt(SSL_get_fd(h->ssl), SOL_TLS, TLS_RX, &k, size);
	}
	OPENSSL_cleanse(&k, sizeof(k));
	OPENSSL_cleanse(iv, sizeof(iv));
}

static struct tls_handshake *begin(int fd)
{
	struct tls_handshake *h;

	if (!ctx) {
		/* A new generation: what it has inherited goes on without. */
		ERR_clear_error();
		ctx = load();
		if (!ctx)
			say("cannot use the certificate %s with the key %s: %s: no new connections", cert_file, key_file, reason());
	}
	h = ctx ? calloc(1, sizeof(*h)) : NULL;
	if (!h)
		return NULL;
	h->ssl = SSL_new(ctx);
	if (!h->ssl || !SSL_set_app_data(h->ssl, h) || !SSL_set_fd(h->ssl, fd)) {
		tls_drop(&h);
		return NULL;
	}
	return h;
}

static enum tls_result finish(struct tls_handshake **h, int fd)
{
	const int both = PERDURE_TLS_TX | PERDURE_TLS_RX;

	if (!(perdure_tls(fd) & PERDURE_TLS_RX))
		receive_by_kernel(*h);
	if ((perdure_tls(fd) & both) != both) {
		say("file %d: the kernel does not take %s with %s: ending this connection", fd, SSL_get_version((*h)->ssl),
		    SSL_get_cipher_name((*h)->ssl));
		/* By whoever encrypts */
		SSL_shutdown((*h)->ssl);
		return TLS_FAILED;
	}
	tls_drop(h);
	return TLS_DONE;
}

enum tls_result tls_handshake(struct tls_handshake **h, int fd)
{
	int ret;

	if (!*h)
		*h = begin(fd);
	if (!*h) {
		perdure_tls_alert(fd, PERDURE_TLS_INTERNAL_ERROR);
		return TLS_FAILED;
	}
	ERR_clear_error();
	ret = SSL_accept((*h)->ssl);
	if (ret == 1)
		return finish(h, fd);
	switch (SSL_get_error((*h)->ssl, ret)) {
	case SSL_ERROR_WANT_READ:
		return TLS_READ;
	case SSL_ERROR_WANT_WRITE:
		return TLS_WRITE;
	default:
		return TLS_FAILED;
	}
}

void tls_drop(struct tls_handshake **h)
{
	if (!*h)
		return;
	SSL_free((*h)->ssl);
	OPENSSL_clear_free(*h, sizeof(**h));
	*h = NULL;
}
