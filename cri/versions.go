package cri

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// vulnerability is a known vulnerability of a runtime that the ordinary calls of a node agent reach.
type vulnerability struct {
	runtime, id, effect string
	// from is the first bad version.
	from version
	// fixed are the first good versions, one for each release branch, ascending. Branches in between got no fix; branches
	// above the last are good.
	fixed []version
}

// version is major, minor, patch. A pre-release counts as the patch before it, that is as not yet fixed.
type version [3]int

// june2026 are the versions that fixed several vulnerabilities at once. checkpoints is the first that starts containers
// from checkpoint images.
var (
	june2026    = []version{{1, 7, 33}, {2, 0, 10}, {2, 1, 9}, {2, 2, 5}, {2, 3, 2}}
	checkpoints = version{2, 1, 0}
)

var vulnerabilities = []vulnerability{
	{"containerd", "CVE-2022-23648", "an image can read files of the host through its volumes",
		version{}, []version{{1, 4, 13}, {1, 5, 10}, {1, 6, 1}}},
	{"containerd", "CVE-2022-31030", "the output of exec probes and hooks can take all memory of the host",
		version{}, []version{{1, 5, 13}, {1, 6, 6}}},
	{"containerd", "CVE-2022-23471", "failed exec sessions with a terminal leak memory of the host",
		version{}, []version{{1, 5, 16}, {1, 6, 12}}},
	{"containerd", "CVE-2023-25173", "a process can give up its main group and so read what files deny to that group",
		version{}, []version{{1, 5, 18}, {1, 6, 18}}},
	{"containerd", "CVE-2025-47290", "an image can change files of the host",
		version{2, 1, 0}, []version{{2, 1, 1}}},
	{"containerd", "CVE-2025-47291", "some limits of pods with user namespaces have no effect",
		version{2, 0, 1}, []version{{2, 0, 5}}},
	{"containerd", "CVE-2025-64329", "attach sessions leak memory of the host",
		version{}, []version{{1, 7, 29}, {2, 0, 7}, {2, 1, 5}, {2, 2, 0}}},
	{"containerd", "CVE-2026-47262", "an image can take all memory of the host", version{}, june2026},
	{"containerd", "CVE-2026-50195", "a checkpoint image can take the place of another image", checkpoints, june2026},
	{"containerd", "CVE-2026-53488", "an image can run commands as root on the host", version{}, june2026},
	{"containerd", "CVE-2026-53489", "a checkpoint image can read files of the host", checkpoints, june2026},
	{"containerd", "CVE-2026-53492", "a checkpoint image can get devices and files of the host", checkpoints, june2026},
	{"containerd", "CVE-2026-53495", "exec probes and hooks that leave a child behind leak memory of the host",
		version{}, []version{{1, 7, 35}, {2, 0, 12}, {2, 2, 8}, {2, 3, 5}}},
	{"containerd", "CVE-2026-95837", "a checkpoint image runs without the security context of its container",
		checkpoints, []version{{2, 2, 7}, {2, 3, 4}}},
	{"containerd", "CVE-2026-95839", "an image can crash the runtime",
		version{2, 2, 0}, []version{{2, 2, 10}, {2, 3, 7}, {2, 4, 2}}},
	{"cri-o", "CVE-2022-0811", "a sysctl of a pod can set any other of the host",
		version{1, 19, 0}, []version{{1, 19, 6}, {1, 20, 7}, {1, 21, 6}, {1, 22, 3}, {1, 23, 2}}},
	{"cri-o", "CVE-2022-1708", "the output of exec probes and hooks can take all memory of the host",
		version{}, []version{{1, 22, 5}, {1, 23, 3}, {1, 24, 1}}},
	{"cri-o", "CVE-2024-3154", "an annotation of a pod can do anything on the host",
		version{}, []version{{1, 27, 6}, {1, 28, 6}, {1, 29, 4}}},
	// Its advisory names 1.30.1, which has the old code.
	{"cri-o", "CVE-2024-5154", "an image can make links on the host",
		version{1, 22, 0}, []version{{1, 27, 7}, {1, 28, 7}, {1, 29, 5}, {1, 30, 2}}},
}

// VersionWarnings lists, as texts for the log, the known vulnerabilities of a runtime by name and version as Version
// returns them. It is empty for good versions, and for unknown runtimes and versions.
func VersionWarnings(name, ver string) []string {
	v, ok := parseVersion(ver)
	if !ok {
		return nil
	}
	var warnings []string
	for _, known := range vulnerabilities {
		if fix, bad := known.hits(name, v); bad {
			warnings = append(warnings, fmt.Sprintf("%s %s has the known vulnerability %s (%s): "+
				"upgrade to %d.%d.%d or later, unless your distribution has fixed it",
				name, ver, known.id, known.effect, fix[0], fix[1], fix[2]))
		}
	}
	return warnings
}

// hits reports whether version v has the vulnerability, and returns the nearest version without it.
func (known vulnerability) hits(name string, v version) (fix version, bad bool) {
	if known.runtime != name || slices.Compare(v[:], known.from[:]) < 0 {
		return version{}, false
	}
	for _, fix := range known.fixed {
		if v[0] == fix[0] && v[1] == fix[1] {
			return fix, v[2] < fix[2]
		}
		if v[0] < fix[0] || v[0] == fix[0] && v[1] < fix[1] {
			return fix, true
		}
	}
	return version{}, false
}

// NoImageSubPath returns why a runtime cannot mount a subPath of an image volume; empty if it can, or is unknown.
// containerd 2.1 mounts the whole image then.
func NoImageSubPath(name, ver string) string {
	v, ok := parseVersion(ver)
	if !ok || name != "containerd" || v[0] > 2 || v[0] == 2 && v[1] >= 2 {
		return ""
	}
	return fmt.Sprintf("%s %s does not support a subPath of an image volume: upgrade to 2.2.0 or later", name, ver)
}

// oneReader reports whether the runtime gives each event to one of the readers of its events, as containerd 1.7 does.
// Those before it have no events.
func oneReader(name, ver string) bool {
	v, ok := parseVersion(ver)
	return ok && name == "containerd" && v[0] < 2
}

// parseVersion reads v1.7.29, 1.6.20~ds1, 2.0.0-rc.1, 1.7.29-k3s1.
func parseVersion(s string) (version, bool) {
	s = strings.TrimPrefix(s, "v")
	end := strings.IndexFunc(s, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	rest := ""
	if end >= 0 {
		s, rest = s[:end], s[end:]
	}
	parts := strings.Split(s, ".")
	if len(parts) != 3 {
		return version{}, false
	}
	var v version
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil {
			return version{}, false
		}
		v[i] = n
	}
	for _, pre := range []string{"-alpha", "-beta", "-rc", "~rc"} {
		if strings.HasPrefix(rest, pre) {
			v[2]--
		}
	}
	return v, true
}
