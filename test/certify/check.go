package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net/mail"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// The files of a submission. There must be no others.
const (
	readmeFile  = "README.md"
	productFile = "PRODUCT.yaml"
	logFile     = "e2e.log"
	junitFile   = "junit_01.xml"
)

// releaseDir matches the name of the directory above the product's, which is the minor version of Kubernetes.
var releaseDir = regexp.MustCompile(`^v1\.\d{2}$`)

// check returns all that is wrong with a submission. required are the full names of the specs that must have passed.
func check(dir string, required []string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	release := filepath.Base(filepath.Dir(dir))
	if !releaseDir.MatchString(release) {
		err = fmt.Errorf("directory %s: want vX.Y/PRODUCT, with the version of Kubernetes", dir)
	}
	return errors.Join(err, checkFiles(dir), checkProduct(dir), checkLog(dir, release), checkSpecs(dir, required))
}

// checkFiles checks that the submission has its files, and no others.
func checkFiles(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	want := []string{productFile, readmeFile, logFile, junitFile}
	var got []string
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Size() == 0 {
			return fmt.Errorf("file %s: it is empty", e.Name())
		}
		got = append(got, e.Name())
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Errorf("files in %s: got %q, want %q", dir, got, want)
	}
	return nil
}

// checkProduct checks the fields of the product's description.
func checkProduct(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, productFile))
	if err != nil {
		return err
	}
	fields := map[string]string{}
	if err := yaml.Unmarshal(text, &fields); err != nil {
		return fmt.Errorf("%s: %w", productFile, err)
	}
	var errs []error
	for _, name := range []string{"vendor", "name", "version", "type", "description", "website_url", "documentation_url",
		"contact_email_address"} {
		if fields[name] == "" {
			errs = append(errs, fmt.Errorf("%s: field %s is missing", productFile, name))
		}
	}
	for _, name := range []string{"website_url", "repo_url", "documentation_url", "product_logo_url"} {
		if u, err := url.Parse(fields[name]); fields[name] != "" && (err != nil || u.Scheme == "" || u.Host == "") {
			errs = append(errs, fmt.Errorf("%s: field %s: %q is no URL", productFile, name, fields[name]))
		}
	}
	if _, err := mail.ParseAddress(fields["contact_email_address"]); fields["contact_email_address"] != "" && err != nil {
		errs = append(errs, fmt.Errorf("%s: field contact_email_address: %w", productFile, err))
	}
	types := []string{"distribution", "hosted platform", "installer"}
	if kind := fields["type"]; kind != "" && !slices.Contains(types, kind) {
		errs = append(errs, fmt.Errorf("%s: field type: got %q, want one of %q", productFile, kind, types))
	}
	return errors.Join(errs...)
}

// serverVersion is in the log of a run.
var serverVersion = regexp.MustCompile(`kube-apiserver version: (v1\.\d+)\.`)

// checkLog checks that the run was against the Kubernetes version of the directory.
func checkLog(dir, release string) error {
	text, err := os.ReadFile(filepath.Join(dir, logFile))
	if err != nil {
		return err
	}
	m := serverVersion.FindSubmatch(text)
	if m == nil {
		return fmt.Errorf("%s: it does not say the version of the kube-apiserver", logFile)
	}
	if got := string(m[1]); got != release {
		return fmt.Errorf("%s: the kube-apiserver is of %s, the directory of %s", logFile, got, release)
	}
	return nil
}

// junit is the report of a run, as the runner of the suite writes it.
type junit struct {
	Cases []struct {
		Name   string `xml:"name,attr"`
		Status string `xml:"status,attr"`
	} `xml:"testsuite>testcase"`
}

// checkSpecs checks that all required specs passed, and that none failed.
func checkSpecs(dir string, required []string) error {
	text, err := os.ReadFile(filepath.Join(dir, junitFile))
	if err != nil {
		return err
	}
	var report junit
	if err := xml.Unmarshal(text, &report); err != nil {
		return fmt.Errorf("%s: %w", junitFile, err)
	}
	passed := map[string]bool{}
	var errs []error
	for _, c := range report.Cases {
		switch name := strings.TrimPrefix(c.Name, "[It] "); c.Status {
		case "passed":
			passed[name] = true
		case "skipped", "pending":
		default:
			errs = append(errs, fmt.Errorf("%s: %s: %s", junitFile, c.Status, name))
		}
	}
	for _, name := range required {
		if !passed[name] {
			errs = append(errs, fmt.Errorf("%s: has not passed: %s", junitFile, name))
		}
	}
	return errors.Join(errs...)
}
