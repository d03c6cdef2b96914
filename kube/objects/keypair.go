package objects

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// newKey generates a key of a type that podCertificate sources name.
func newKey(keyType string) (crypto.Signer, error) {
	switch keyType {
	case "RSA3072":
		return rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		return rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return nil, fmt.Errorf("keyType %q is not supported by this node agent", keyType)
}

// pair returns a key with the certificate chain that was issued for it.
func pair(key crypto.Signer, chain string) (*tls.Certificate, error) {
	c := &tls.Certificate{PrivateKey: key}
	for block, rest := pem.Decode([]byte(chain)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			c.Certificate = append(c.Certificate, block.Bytes)
		}
	}
	return c, checkPair(c)
}

// checkPair parses the leaf certificate and checks that it is for the key.
func checkPair(c *tls.Certificate) (err error) {
	key, ok := c.PrivateKey.(crypto.Signer)
	if !ok || len(c.Certificate) == 0 {
		return errors.New("key or certificate is missing")
	}
	if c.Leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
		return err
	}
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(c.Leaf.PublicKey) {
		return errors.New("the certificate is for another key")
	}
	return nil
}
