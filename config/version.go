package config

import (
	"fmt"

	"github.com/nodelet/nodelet/internal/release"
)

// KubernetesVersion is the version of the kubelet whose behavior, fields and flags nodelet follows.
const KubernetesVersion = release.Kubernetes

// Version is nodelet's own version without a leading v. Builds stamp it:
//
//	go build -ldflags "-X github.com/nodelet/nodelet/config.Version=0.1.0"
var Version = "0.0.0-dev"

// KubeletVersion is the version in the Node object, the user agent and the metrics, for example
// "v1.37.2+nodelet.0.1.0": a semantic version that compares equal to the kubelet's, with nodelet's version as build
// metadata.
func KubeletVersion() string {
	return KubernetesVersion + "+nodelet." + buildPart(Version)
}

// UserAgent is that of most connections to the API server.
func UserAgent() string { return "nodelet/" + KubeletVersion() }

// VersionText is what --version prints, for example "Kubernetes v1.37.2+nodelet.0.1.0". kubeadm takes the last word of
// it as a semantic version.
func VersionText() string { return fmt.Sprintf("Kubernetes %s\n", KubeletVersion()) }

// buildPart converts s to valid build metadata of a semantic version: letters, digits, hyphens and dots.
func buildPart(s string) string {
	if s == "" {
		return "unknown"
	}
	out := []byte(s)
	for i, c := range out {
		isWord := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		atEdge := i == 0 || i == len(out)-1
		if !isWord && c != '-' && (c != '.' || atEdge || out[i-1] == '.') {
			out[i] = '-'
		}
	}
	return string(out)
}
