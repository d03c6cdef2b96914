package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// sumsName is the file of checksums, in the format of sha256sum(1).
const sumsName = "SHA256SUMS"

func writeSums(dir string) error {
	all, err := subjects(dir)
	if err != nil {
		return err
	}
	return writeArtefact(dir, sumsName, func(w io.Writer) error {
		for _, s := range all {
			if _, err := fmt.Fprintf(w, "%s  %s\n", s.Digest["sha256"], s.Name); err != nil {
				return err
			}
		}
		return nil
	})
}

// signSums writes SHA256SUMS.sig, the signature of SHA256SUMS in base64: what "cosign verify-blob --key" and OpenSSL
// check. The key is a PEM file with an ECDSA key (the kind that cosign uses; the signature is of the SHA-256) or an
// Ed25519 key (the signature is of the file), unencrypted, as PKCS #8.
func signSums(dir, keyFile string) error {
	key, err := readKey(keyFile)
	if err != nil {
		return err
	}
	body, err := os.ReadFile(filepath.Join(dir, sumsName))
	if err != nil {
		return err
	}
	signature, err := sign(key, body)
	if err != nil {
		return fmt.Errorf("sign %s with %s: %w", sumsName, keyFile, err)
	}
	return writeArtefact(dir, sumsName+".sig", func(w io.Writer) error {
		_, err := fmt.Fprintln(w, base64.StdEncoding.EncodeToString(signature))
		return err
	})
}

func readKey(path string) (crypto.Signer, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("read key %s: no PEM block; make one with: openssl genpkey -algorithm ed25519", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read key %s: %w; convert it with: openssl pkcs8 -topk8 -nocrypt", path, err)
	}
	switch key := key.(type) {
	case ed25519.PrivateKey:
		return key, nil
	case *ecdsa.PrivateKey:
		return key, nil
	}
	return nil, fmt.Errorf("read key %s: %T is not supported: want Ed25519 or ECDSA", path, key)
}

func sign(key crypto.Signer, body []byte) ([]byte, error) {
	if _, ok := key.(ed25519.PrivateKey); ok {
		return key.Sign(rand.Reader, body, crypto.Hash(0))
	}
	sum := sha256.Sum256(body)
	return key.Sign(rand.Reader, sum[:], crypto.SHA256)
}
