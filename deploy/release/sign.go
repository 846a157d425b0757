// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// key signs. Signatures of the same bytes by the same key are the same: ECDSA uses the
// nonces of RFC 6979.
type key struct{ private crypto.Signer }

var _ dsse.Signer = (*key)(nil)

// readKey reads a private key. Without a file there is none. Errors name the file, never
// what it holds.
func readKey(file string) (*key, error) {
	if file == "" {
		return nil, nil
	}
	const form = `give a private key for signing that is not encrypted: PKCS #8, PEM, Ed25519 or ECDSA P-256, as "openssl genpkey -algorithm ed25519 -out FILE" writes it`
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("read signing key: %w", err)
	}
	if info.Mode()&fs.ModeType == 0 && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("signing key %s: its mode %#o lets other users read it: chmod 600 it, or make another key", file, info.Mode().Perm())
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read signing key: %w", err)
	}
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("signing key %s has no block PRIVATE KEY: %s", file, form)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("signing key %s is not PKCS #8: %s", file, form)
	}
	var signer crypto.Signer
	switch k := parsed.(type) {
	case ed25519.PrivateKey:
		signer = k
	case *ecdsa.PrivateKey:
		if k.Curve == elliptic.P256() {
			signer = k
		}
	}
	if signer == nil {
		return nil, fmt.Errorf("signing key %s is of another kind: %s", file, form)
	}
	return &key{signer}, nil
}

// Sign implements dsse.Signer. Ed25519 signs the bytes, ECDSA their SHA-256.
func (k *key) Sign(_ context.Context, data []byte) ([]byte, error) {
	if _, ok := k.private.(ed25519.PrivateKey); ok {
		return k.private.Sign(nil, data, crypto.Hash(0))
	}
	sum := sha256.Sum256(data)
	return k.private.Sign(nil, sum[:], crypto.SHA256) // without a source of randomness, by RFC 6979
}

// KeyID implements dsse.Signer: the fingerprint that "ssh-keygen -l" prints of the public key.
func (k *key) KeyID() (string, error) { return dsse.SHA256KeyID(k.private.Public()) }

// detached returns a signature of bytes in base64, as "cosign verify-blob" reads it.
func (k *key) detached(ctx context.Context, data []byte) ([]byte, error) {
	sig, err := k.Sign(ctx, data)
	if err != nil {
		return nil, errors.New("sign: the key does not sign")
	}
	return []byte(base64.StdEncoding.EncodeToString(sig) + "\n"), nil
}

// envelope returns a statement in a signed envelope (DSSE).
func (k *key) envelope(ctx context.Context, statement []byte) ([]byte, error) {
	signer, err := dsse.NewEnvelopeSigner(k)
	if err != nil {
		return nil, err
	}
	e, err := signer.SignPayload(ctx, payloadType, statement)
	if err != nil {
		return nil, errors.New("sign provenance: the key does not sign")
	}
	text, err := json.Marshal(e)
	return append(text, '\n'), err
}
