package spec

import (
	"errors"
	"fmt"
	"strings"
)

// ResolvConf is what a resolv.conf(5) file says.
type ResolvConf struct {
	Nameservers []string
	// Search is the last search line, each domain without its trailing dot.
	Search []string
	// Options are all options, written as in the file (ndots:5), each name once: the last value wins.
	Options []string
}

// MaxResolvConf is the size up to which ParseResolvConf reads a file.
const MaxResolvConf = 10 << 20

// ParseResolvConf reads the content of a resolv.conf file. It knows nameserver, search and options lines, as the kubelet
// does, and skips others.
func ParseResolvConf(content []byte) (ResolvConf, error) {
	if len(content) > MaxResolvConf {
		return ResolvConf{}, fmt.Errorf("resolv.conf has %d bytes, more than %d", len(content), MaxResolvConf)
	}
	var conf ResolvConf
	var errs []error
	number := 0
	for line := range strings.Lines(string(content)) {
		number++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if len(fields) < 2 {
				errs = append(errs, fmt.Errorf("resolv.conf line %d: nameserver without an address", number))
				continue
			}
			conf.Nameservers = append(conf.Nameservers, fields[1])
		case "search":
			conf.Search = searchDomains(fields[1:])
		case "options":
			for _, option := range fields[1:] {
				conf.Options = setOption(conf.Options, option)
			}
		}
	}
	if len(errs) > 0 {
		return ResolvConf{}, errors.Join(errs...)
	}
	return conf, nil
}

// searchDomains drops trailing dots, so that a domain with and without one counts once, and the root domain.
func searchDomains(fields []string) []string {
	var domains []string
	for _, field := range fields {
		if field != "." {
			domains = append(domains, strings.TrimSuffix(field, "."))
		}
	}
	return domains
}

// setOption puts a resolver option in the place of one of the same name, or at the end.
func setOption(options []string, option string) []string {
	name := optionName(option)
	for i, old := range options {
		if optionName(old) == name {
			options[i] = option
			return options
		}
	}
	return append(options, option)
}

func optionName(option string) string {
	name, _, _ := strings.Cut(option, ":")
	return name
}
