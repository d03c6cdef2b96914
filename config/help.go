package config

import (
	"fmt"
	"strings"
)

// HelpText is what --help prints: the commands, and the most important flags by topic.
func HelpText() string {
	var b strings.Builder
	b.WriteString("nodelet runs the pods of a Kubernetes node, in place of the kubelet " + KubernetesVersion + `.

Usage: nodelet [flags]
       nodelet COMMAND [arguments]

  nodelet --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf
  nodelet --manifests=/etc/kubernetes/manifests          standalone: static pods only, no API server

Commands:
  explain [POD]...   show what the pods of this node are waiting for
  systemd            install nodelet under systemd, uninstall it, show its status
  completion         print the completion script for bash
  version            print the version
  help [COMMAND]     print this text, or the usage of a command
`)
	hidden := 0
	for g := gFiles; g <= gProcess; g++ {
		fmt.Fprintf(&b, "\n%s:\n", groupTitles[g])
		for _, k := range knobs {
			if k.flag != "" && k.group == g {
				fmt.Fprintf(&b, "  %-38s %s%s\n", usage(k), k.help, shownDefault(k))
			}
		}
	}
	for _, k := range knobs {
		if k.flag != "" && k.group == gHidden {
			hidden++
		}
	}
	b.WriteString("\nBoolean flags: --flag turns it on, --flag=false turns it off.\n")
	fmt.Fprintf(&b, "All %d other flags of the kubelet are accepted too; "+
		"--help-all lists them and says which have an effect.\n", hidden)
	b.WriteString("Prefer the fields of the configuration file over flags; Kubernetes has deprecated most flags:\n" +
		"https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/\n" +
		"More about nodelet: docs/ in its repository.\n")
	return b.String()
}

// helpAllText is what --help-all prints: every flag with its field and whether it has an effect.
func helpAllText() string {
	var b strings.Builder
	b.WriteString("Flags of the kubelet " + KubernetesVersion + ". " +
		"Those without a mark have an effect; (-) is accepted with a warning.\n\n")
	for _, k := range knobs {
		if k.flag == "" {
			continue
		}
		line := fmt.Sprintf("%s %-58s %s%s", mark(k), usage(k), k.field, shownDefault(k))
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	b.WriteString("\nFields of KubeletConfiguration without a flag:\n\n")
	for _, k := range knobs {
		if k.flag == "" {
			fmt.Fprintf(&b, "%s %s\n", mark(k), k.field)
		}
	}
	return b.String()
}

func mark(k knob) string {
	if k.acts {
		return "   "
	}
	return "(-)"
}

func usage(k knob) string {
	if len(k.flag) == 1 {
		return "-" + k.flag + " " + k.kind.usage
	}
	return strings.TrimSpace("--" + k.flag + " " + k.kind.usage)
}

// shownDefault returns " (default X)", or "" for a zero value.
func shownDefault(k knob) string {
	text := k.def
	if k.field != "" {
		defaults := &KubeletConfiguration{}
		setDefaults(defaults)
		text = strings.Trim(textAt(defaults, k.field), `"`)
	}
	switch text {
	case "", "null", "false", "0", "{}", "[]", "0s":
		return ""
	}
	if strings.HasPrefix(text, "{") { // the only object with a default is evictionHard
		return " (default: the kubelet's)"
	}
	return " (default " + text + ")"
}
