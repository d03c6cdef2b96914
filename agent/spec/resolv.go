package spec

import (
	"errors"
	"fmt"
	"strings"
)

// ResolvConf is the parsed content of a resolv.conf(5) file.
type ResolvConf struct {
	Nameservers []string
	// Search holds the domains of the last search line, without trailing dots.
	Search []string
	// Options are all options, written as in the file (ndots:5). Each name occurs once, with its last value.
	Options []string
}

// maxResolvConf is the largest size of a file that ParseResolvConf accepts, in bytes.
const maxResolvConf = 10 << 20

// ParseResolvConf parses the content of a resolv.conf file. Like the kubelet, it reads nameserver, search and options
// lines, and skips all others.
func ParseResolvConf(content []byte) (ResolvConf, error) {
	if len(content) > maxResolvConf {
		return ResolvConf{}, fmt.Errorf("resolv.conf has %d bytes, more than %d", len(content), maxResolvConf)
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

// searchDomains removes trailing dots, so that a domain with and one without a dot are equal. It drops the root domain.
func searchDomains(fields []string) []string {
	var domains []string
	for _, field := range fields {
		if field != "." {
			domains = append(domains, strings.TrimSuffix(field, "."))
		}
	}
	return domains
}

// setOption replaces the resolver option of the same name, or appends the option.
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
