package config

import (
	"fmt"
	"strings"
)

// FlagHelp describes the most important flags by topic.
func FlagHelp() string {
	var b strings.Builder
	hidden := 0
	for g := gFiles; g <= gProcess; g++ {
		fmt.Fprintf(&b, "\n%s:\n", groupTitles[g])
		for _, k := range settingTable {
			if k.flag != "" && k.group == g {
				fmt.Fprintf(&b, "  %-39s %s%s\n", usage(k), k.help, shownDefault(k))
			}
		}
	}
	for _, k := range settingTable {
		if k.flag != "" && k.group == gHidden {
			hidden++
		}
	}
	b.WriteString("\nBoolean flags: --flag turns it on, --flag=false turns it off.\n")
	fmt.Fprintf(&b, "All %d other flags of the kubelet and of nodelet are accepted too: see --help-all.\n", hidden)
	b.WriteString("Prefer the fields of the configuration file over flags; Kubernetes has deprecated most flags:\n" +
		"https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/\n")
	return b.String()
}

// helpAllText is what --help-all prints: every flag with its field and whether it has an effect.
func helpAllText() string {
	var b strings.Builder
	b.WriteString("All flags: those of the kubelet " + KubernetesVersion + " and of nodelet. " +
		"(-) is accepted without effect.\n")
	for _, k := range settingTable {
		if k.flag != "" {
			b.WriteString("\n" + entry(k, usage(k), fieldNote(k)))
		}
	}
	b.WriteString("\n\nFields of KubeletConfiguration without a flag:\n")
	for _, k := range settingTable {
		if k.flag == "" {
			b.WriteString("\n" + entry(k, k.field, ""))
		}
	}
	return b.String()
}

// entry describes a setting in two lines.
func entry(k setting, name, note string) string {
	return fmt.Sprintf("%s %s%s%s\n        %s\n", mark(k), name, shownDefault(k), note, k.help)
}

func fieldNote(k setting) string {
	if k.field == "" {
		return ""
	}
	return "  [" + k.field + "]"
}

func mark(k setting) string {
	if v, _ := k.support(); v == NoEffect {
		return "(-)"
	}
	return "   "
}

func usage(k setting) string {
	if len(k.flag) == 1 {
		return "-" + k.flag + " " + k.kind.usage
	}
	return strings.TrimSpace("--" + k.flag + " " + k.kind.usage)
}

// shownDefault returns " (default X)", or "" for a zero value.
func shownDefault(k setting) string {
	text := defaultText(k)
	switch {
	case text == "":
		return ""
	case strings.HasPrefix(text, "{"): // the only object with a default is evictionHard
		return " (default: the kubelet's)"
	}
	return " (default " + text + ")"
}
