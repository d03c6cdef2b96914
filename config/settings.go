package config

import (
	"slices"
	"strings"

	"github.com/nodelet/nodelet/internal/strict"
)

// Setting describes a flag, a field of KubeletConfiguration, or both, for completion, systemd install and reference
// pages.
type Setting struct {
	// Field is the path of the field; empty if there is only a flag.
	Field string
	// Flag is the name without dashes; empty if there is only a field. Aliases are other names of the flag.
	Flag    string
	Aliases []string
	// Value says what follows the flag: FILE, DIR, words separated by "|", a type; empty for a boolean flag.
	Value string
	// Default is the default as text; empty if it is a zero value.
	Default string
	// Support says what nodelet does with the setting, and Difference how that differs from the kubelet.
	Support    Support
	Difference string
	// Topic is the heading of --help; empty for a flag that only --help-all lists.
	Topic string
	// Help says what the setting does, or what to do instead if nodelet does not act on it.
	Help string
	// Own reports whether the kubelet does not have the flag.
	Own bool
}

// ownFlags are flags that the kubelet does not have, besides lostFlags.
var ownFlags = []string{
	"network", "cni-conf", "cni-conf-dir", "cni-bin-dir", "cni-networks-dir", "cni-call-timeout", "cni-check-period",
	"non-masquerade-cidr", "accept-missing", "pod-infra-container-image",
}

// isOwn reports whether the kubelet does not have a flag.
func isOwn(flag string) bool {
	return slices.Contains(ownFlags, flag) ||
		slices.ContainsFunc(lostFlags, func(k setting) bool { return k.flag == flag })
}

// Settings returns all settings, by topic.
func Settings() []Setting {
	all := make([]Setting, 0, len(settingTable))
	for _, k := range settingTable {
		s := Setting{
			Field:   k.field,
			Flag:    k.flag,
			Default: defaultText(k),
			Topic:   groupTitles[k.group],
			Help:    k.help,
			Own:     isOwn(k.flag),
		}
		s.Support, s.Difference = k.support()
		if k.flag != "" {
			s.Value = k.kind.usage
		}
		for alias, flag := range aliases {
			if flag == k.flag {
				s.Aliases = append(s.Aliases, alias)
			}
		}
		all = append(all, s)
	}
	return all
}

// defaultText returns the default of a setting, or "" for a zero value.
func defaultText(k setting) string {
	text := k.def
	if k.field != "" {
		text = strings.Trim(textAt(defaults(), k.field), `"`)
	}
	if strict.IsEmpty(text) {
		return ""
	}
	return text
}
