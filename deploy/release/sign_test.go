// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// keyFile writes a private key and returns the file and what it holds.
func keyFile(t *testing.T, private any) (string, []byte) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	content := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	name := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return name, content
}

func keys(t *testing.T) (ed25519.PrivateKey, *ecdsa.PrivateKey) {
	t.Helper()
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return ed, ec
}

// verifier checks signatures with the public key alone.
type verifier struct{ public crypto.PublicKey }

func (v verifier) Verify(_ context.Context, data, sig []byte) error {
	sum, ok := sha256.Sum256(data), false
	switch p := v.public.(type) {
	case ed25519.PublicKey:
		ok = ed25519.Verify(p, data, sig)
	case *ecdsa.PublicKey:
		ok = ecdsa.VerifyASN1(p, sum[:], sig)
	}
	if !ok {
		return errors.New("wrong signature")
	}
	return nil
}
func (v verifier) KeyID() (string, error)   { return "", nil } // the library's own
func (v verifier) Public() crypto.PublicKey { return v.public }

func TestSignatures(t *testing.T) {
	ed, ec := keys(t)
	for _, private := range []crypto.Signer{ed, ec} {
		file, _ := keyFile(t, private)
		k, err := readKey(file)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		r := &release{source: source{commit: strings.Repeat("0", 40)}, version: "0.2.0", out: dir, key: k,
			files: []subject{{Name: "x", Digest: map[string]string{"sha256": digest([]byte("x"))}}}}
		if err := r.seal(t.Context()); err != nil {
			t.Fatal(err)
		}
		v := verifier{private.Public()}
		sums := read(t, dir, "SHA256SUMS")
		sig, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(read(t, dir, "SHA256SUMS.sig"))))
		if err != nil || v.Verify(t.Context(), sums, sig) != nil {
			t.Errorf("%T: the signature of SHA256SUMS is wrong (%v)", private, err)
		}
		if v.Verify(t.Context(), append(sums, 'x'), sig) == nil {
			t.Errorf("%T: the signature is also that of other sums", private)
		}
		raw := read(t, dir, "isthmus-0.2.0.intoto.jsonl")
		var e dsse.Envelope
		if err := json.Unmarshal(raw, &e); err != nil {
			t.Fatal(err)
		}
		envelopes, err := dsse.NewEnvelopeVerifier(v)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := envelopes.Verify(t.Context(), &e); err != nil {
			t.Errorf("%T: provenance: %v", private, err)
		}
		payload, err := e.DecodeB64Payload()
		if err != nil || !bytes.Equal(payload, read(t, dir, "isthmus-0.2.0.provenance.json")) {
			t.Errorf("%T: the envelope holds another statement (%v)", private, err)
		}
		if err := r.seal(t.Context()); err != nil || !bytes.Equal(raw, read(t, dir, "isthmus-0.2.0.intoto.jsonl")) {
			t.Errorf("%T: the same statement has another signature (%v)", private, err)
		}
	}
}

// TestKeys lists keys that are refused. Messages never hold what the file holds.
func TestKeys(t *testing.T) {
	ed, _ := keys(t)
	open, openContent := keyFile(t, ed)
	if err := os.Chmod(open, 0o640); err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	other, otherContent := keyFile(t, rsaKey)
	dir := t.TempDir()
	for name, content := range map[string]string{
		"encrypted": "-----BEGIN ENCRYPTED PRIVATE KEY-----\nc2VjcmV0\n-----END ENCRYPTED PRIVATE KEY-----\n",
		"text":      "c2VjcmV0",
		"broken":    "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{
		open: "chmod 600", other: "another kind", filepath.Join(dir, "encrypted"): "not encrypted",
		filepath.Join(dir, "text"): "no block PRIVATE KEY", filepath.Join(dir, "broken"): "not PKCS #8",
	} {
		_, err := readKey(file)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, want %q", file, err, want)
			continue
		}
		for _, secret := range []string{"c2VjcmV0", string(openContent[30:60]), string(otherContent[30:60])} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error holds the key", file)
			}
		}
	}
	if k, err := readKey(""); k != nil || err != nil {
		t.Errorf("no file: %v, %v", k, err)
	}
}
