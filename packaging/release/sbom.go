package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"time"
)

// sbom is an SPDX document, https://spdx.github.io/spdx-spec/v2.3.
type sbom struct {
	SPDXVersion       string             `json:"spdxVersion"`
	DataLicense       string             `json:"dataLicense"`
	SPDXID            string             `json:"SPDXID"`
	Name              string             `json:"name"`
	DocumentNamespace string             `json:"documentNamespace"`
	CreationInfo      map[string]any     `json:"creationInfo"`
	Packages          []spdxPackage      `json:"packages"`
	Relationships     []spdxRelationship `json:"relationships"`
}

type spdxPackage struct {
	Name             string         `json:"name"`
	SPDXID           string         `json:"SPDXID"`
	VersionInfo      string         `json:"versionInfo"`
	DownloadLocation string         `json:"downloadLocation"`
	FilesAnalyzed    bool           `json:"filesAnalyzed"`
	LicenseConcluded string         `json:"licenseConcluded"`
	LicenseDeclared  string         `json:"licenseDeclared"`
	CopyrightText    string         `json:"copyrightText"`
	Checksums        []spdxChecksum `json:"checksums,omitempty"`
	// Comment has the module's hash of go.sum.
	Comment      string            `json:"comment,omitempty"`
	ExternalRefs []spdxExternalRef `json:"externalRefs"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxExternalRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

// spdxNotInID matches what an SPDX identifier cannot have.
var spdxNotInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// newSBOM lists what is linked into a program, from the build information in it: its main module, its other modules,
// and the Go standard library.
func newSBOM(o options, arch, binary string, body []byte, known licenses) (sbom, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return sbom{}, err
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(body))
	name := "nodelet-" + o.version + "-linux-" + arch
	s := sbom{
		SPDXVersion:       "SPDX-2.3",
		DataLicense:       "CC0-1.0",
		SPDXID:            "SPDXRef-DOCUMENT",
		Name:              name,
		DocumentNamespace: "https://github.com/nodelet/nodelet/spdx/" + name + "-" + sum,
		CreationInfo: map[string]any{
			"created":  o.when().Format(time.RFC3339),
			"creators": []string{"Organization: The nodelet authors", "Tool: nodelet-packaging-release"},
		},
	}
	main := spdxModule(info.Main.Path, "v"+o.version, "Apache-2.0")
	main.Checksums = []spdxChecksum{{Algorithm: "SHA256", Value: sum}}
	s.add(main, "DESCRIBES", s.SPDXID)
	spdx := map[string]string{}
	for _, m := range known {
		spdx[m.path] = m.spdx
	}
	s.add(spdxModule("std", info.GoVersion, spdx["std"]), "STATIC_LINK", main.SPDXID)
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			return sbom{}, fmt.Errorf("list %s: it is replaced by %s, which the SBOM cannot show", dep.Path, dep.Replace.Path)
		}
		if spdx[dep.Path] == "" {
			return sbom{}, fmt.Errorf("list %s: its license was not collected", dep.Path)
		}
		p := spdxModule(dep.Path, dep.Version, spdx[dep.Path])
		p.Comment = "go.sum " + dep.Sum
		s.add(p, "STATIC_LINK", main.SPDXID)
	}
	return s, nil
}

func spdxModule(path, version, license string) spdxPackage {
	purl := "pkg:golang/" + path + "@" + version
	return spdxPackage{
		Name:             path,
		SPDXID:           "SPDXRef-" + spdxNotInID.ReplaceAllString(path, "-"),
		VersionInfo:      version,
		DownloadLocation: "NOASSERTION",
		LicenseConcluded: license,
		LicenseDeclared:  license,
		CopyrightText:    "NOASSERTION",
		ExternalRefs:     []spdxExternalRef{{Category: "PACKAGE-MANAGER", Type: "purl", Locator: purl}},
	}
}

// add adds a package and its relationship to another element.
func (s *sbom) add(p spdxPackage, relationship, to string) {
	s.Packages = append(s.Packages, p)
	s.Relationships = append(s.Relationships, spdxRelationship{Element: to, Type: relationship, Related: p.SPDXID})
}

func (s sbom) write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(s)
}
