package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// sourceOptions are those of a build of this source tree.
func sourceOptions() options {
	o := testOptions()
	o.root, o.tags = filepath.Join("..", ".."), "grpcnotrace"
	return o
}

// TestSBOM builds nodelet and checks that its SBOM lists exactly the modules that "go version -m" prints, each with a
// license whose text is among the notices.
func TestSBOM(t *testing.T) {
	o := sourceOptions()
	ctx := context.Background()
	binary := filepath.Join(t.TempDir(), "nodelet")
	if err := compile(ctx, o, runtime.GOARCH, binary); err != nil {
		t.Fatal(err)
	}
	known, err := licensesOf(ctx, o, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	body, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	bill, err := newSBOM(o, runtime.GOARCH, binary, body, known)
	if err != nil {
		t.Fatal(err)
	}
	want := modulesOf(t, tool(t, "go", "version", "-m", binary))
	var got []string
	ids := map[string]bool{}
	for _, p := range bill.Packages[2:] { // after nodelet and the standard library
		got = append(got, p.Name+" "+p.VersionInfo)
		ids[p.SPDXID] = true
	}
	slices.Sort(got)
	if len(want) < 20 || !slices.Equal(got, want) {
		t.Errorf("got modules %v, want %v", got, want)
	}
	if len(ids) != len(got) {
		t.Errorf("got %d identifiers for %d modules, want %d", len(ids), len(got), len(got))
	}
	var collected []string
	for _, m := range known[1:] {
		collected = append(collected, m.path+" "+m.version)
		if len(m.notices) == 0 || !bytes.Contains(known.text(), []byte(m.notices[0].text)) {
			t.Errorf("%s: got no license text among the notices, want it", m.path)
		}
	}
	if !slices.Equal(collected, want) {
		t.Errorf("got licenses of %v, want those of %v", collected, want)
	}
}

// modulesOf returns the modules in the output of "go version -m", sorted.
func modulesOf(t *testing.T, text string) []string {
	t.Helper()
	var all []string
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) >= 3 && words[0] == "dep" {
			all = append(all, words[1]+" "+words[2])
		}
	}
	slices.Sort(all)
	return all
}

func TestClassify(t *testing.T) {
	for text, want := range map[string]string{
		"Apache License\n  Version 2.0, January 2004":                                          "Apache-2.0",
		"Permission is hereby granted, free of\ncharge, to any person obtaining a copy":        "MIT",
		"Redistribution and use in source and binary forms … Neither the name of Google":       "BSD-3-Clause",
		"Redistribution and use in source and binary forms … THIS SOFTWARE":                    "BSD-2-Clause",
		"Mozilla Public License Version 2.0 Redistribution and use in source and binary forms": "BSD-2-Clause AND MPL-2.0",
		"All rights reserved. You may not look at this.":                                       "",
	} {
		if got := classify(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// TestUnknownLicense checks that a module whose license is not known stops the release.
func TestUnknownLicense(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "LICENSE"), []byte("Ask us.\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := readNotices("example.com/m", "v1", dir, map[string]bool{dir: true})
	if err == nil || !strings.Contains(err.Error(), "example.com/m v1") {
		t.Errorf("got %v, want an error that names the module", err)
	}
}

// TestSigned signs checksums with both kinds of keys. OpenSSL checks the signatures, and refuses a changed file.
func TestSigned(t *testing.T) {
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		private, public any
		check           []string
	}{
		"ed25519": {edKey, edKey.Public(), []string{"pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", "key.pub",
			"-sigfile", "raw.sig", "-in", sumsName}},
		"ecdsa": {ecKey, ecKey.Public(), []string{"dgst", "-sha256", "-verify", "key.pub",
			"-signature", "raw.sig", sumsName}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			private, err := x509.MarshalPKCS8PrivateKey(test.private)
			if err != nil {
				t.Fatal(err)
			}
			public, err := x509.MarshalPKIXPublicKey(test.public)
			if err != nil {
				t.Fatal(err)
			}
			put(t, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
			put(t, "key.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
			put(t, sumsName, []byte("00  file\n"))
			if err := signSums(".", "key.pem"); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(sumsName + ".sig")
			if err != nil {
				t.Fatal(err)
			}
			raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			put(t, "raw.sig", raw)
			tool(t, "openssl", test.check...)
			put(t, sumsName, []byte("01  file\n"))
			if _, err := output(t.Context(), ".", nil, "openssl", test.check...); err == nil {
				t.Error("the signature of another file was accepted")
			}
		})
	}
}

// TestNoKey checks what a file that is no key is refused with.
func TestNoKey(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "key.pem", []byte("junk"))
	if err := signSums(".", "key.pem"); err == nil || !strings.Contains(err.Error(), "openssl genpkey") {
		t.Errorf("got %v, want advice how to make a key", err)
	}
}

// TestProvenance checks that the statement has all artefacts, that sha256sum accepts the checksums, and that a changed
// artefact is found when two builds are compared.
func TestProvenance(t *testing.T) {
	t.Chdir(t.TempDir())
	o := testOptions()
	o.out = "dist"
	put(t, "dist/nodelet-a", []byte("a"))
	put(t, "dist/nodelet-b", []byte("b"))
	if err := writeProvenance(o); err != nil {
		t.Fatal(err)
	}
	if err := writeSums("dist"); err != nil {
		t.Fatal(err)
	}
	var statement struct {
		Type    string `json:"_type"`
		Subject []subject
	}
	text, err := os.ReadFile("dist/nodelet-1.2.3-rc.1.provenance.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &statement); err != nil {
		t.Fatal(err)
	}
	if len(statement.Subject) != 2 || statement.Subject[0].Name != "nodelet-a" {
		t.Errorf("got subjects %v, want both artefacts", statement.Subject)
	}
	tool(t, "sh", "-c", "cd dist && sha256sum --check --quiet "+sumsName)
	put(t, "other/nodelet-a", []byte("a"))
	put(t, "other/nodelet-b", []byte("changed"))
	if err := writeSums("other"); err != nil {
		t.Fatal(err)
	}
	err = compareSums("dist/"+sumsName, "other/"+sumsName)
	if err == nil || !strings.Contains(err.Error(), "nodelet-b") {
		t.Errorf("got %v, want an error that names nodelet-b", err)
	}
	if err := compareSums("dist/"+sumsName, "dist/"+sumsName); err != nil {
		t.Errorf("compare a build with itself: %v", err)
	}
}

// TestUnfinishedFile checks that what a killed run has left in the output directory is removed with its artefacts.
func TestUnfinishedFile(t *testing.T) {
	t.Chdir(t.TempDir())
	err := writeArtefact("dist", "nodelet-new", func(io.Writer) error {
		left, err := filepath.Glob("dist/.*") // as it is now, and stays if the run is killed
		if err != nil || len(left) != 1 {
			t.Fatalf("got %v, %v, want the unfinished file", left, err)
		}
		return os.Link(left[0], left[0]+"1")
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := emptyDir("dist"); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir("dist"); err != nil || len(left) > 0 {
		t.Errorf("got %v left, %v, want an empty directory", left, err)
	}
}

// TestForeignFiles checks that a directory with other files is not emptied.
func TestForeignFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "home/nodelet-old", nil)
	put(t, "home/letter", nil)
	if err := emptyDir("home"); err == nil || !strings.Contains(err.Error(), "letter") {
		t.Errorf("got %v, want an error that names the file", err)
	}
	if _, err := os.Stat("home/nodelet-old"); err != nil {
		t.Error(err)
	}
}

// TestScripts checks the syntax of the scripts of the packages.
func TestScripts(t *testing.T) {
	found, err := filepath.Glob("scripts/*/*")
	if err != nil || len(found) < 9 {
		t.Fatalf("got %d scripts, %v", len(found), err)
	}
	for _, f := range found {
		if filepath.Ext(f) != ".lintian" {
			tool(t, "sh", "-n", f)
		}
	}
}

func put(t *testing.T, name string, body []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, body, 0o644); err != nil {
		t.Fatal(err)
	}
}
