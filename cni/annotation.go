package cni

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/utils"
)

// Annotations of the Network Plumbing Working Group's de-facto standard, version 1.3.
const (
	networksAnnotation = "k8s.v1.cni.cncf.io/networks"
	StatusAnnotation   = "k8s.v1.cni.cncf.io/network-status"
)

// defaultNetworkAnnotation is Multus' annotation that selects another first network than the node's own.
const defaultNetworkAnnotation = "v1.multus-cni.io/default-network"

// defaultNetworkSpace is the namespace of a default network if the annotation has none, as with Multus.
const defaultNetworkSpace = "kube-system"

// sharedSpaces are the namespaces whose networks all pods may select. With namespaceIsolation, Multus allows them too.
var sharedSpaces = []string{"default", defaultNetworkSpace}

// firstInterface is the interface of a pod in its first network.
const firstInterface = "eth0"

// maxNetworks bounds the additional networks of a pod.
const maxNetworks = 32

// Selection is an additional network that a pod selects.
type Selection struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	IfName    string `json:"interface"`
	// Capability arguments, for plugins that declare them.
	MAC            string         `json:"mac"`
	IPs            []string       `json:"ips"`
	InfinibandGUID string         `json:"infiniband-guid"`
	Bandwidth      map[string]any `json:"bandwidth"`
	DeviceID       string         `json:"deviceID"`
	CNIArgs        map[string]any `json:"cni-args"`
	// DefaultRoute moves the pod's default route to this network. It is refused, because CHECK of the plugins would
	// fail.
	DefaultRoute []string `json:"default-route"`
	// PortMappings asks for ports of the node. It is refused: neither the scheduler nor Pod Security looks at it.
	PortMappings []any `json:"portMappings"`
}

// label names the network as users do.
func (s *Selection) label() string { return s.Namespace + "/" + s.Name }

var objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// isObjectName reports whether an object of the API can have the name. The expression is small because its length is
// checked apart: a count in it would be 250 copies.
func isObjectName(name string) bool { return len(name) <= 253 && objectName.MatchString(name) }

// parseSelections parses the annotation networksAnnotation: a JSON list, or [NAMESPACE/]NAME[@INTERFACE] separated by
// commas. Interfaces without a name are net1, net2 and so on. namespace is that of the pod.
func parseSelections(text, namespace string) ([]Selection, error) {
	all, err := readSelections(text)
	if err == nil {
		err = complete(all, namespace, namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", networksAnnotation, err)
	}
	return all, nil
}

// parseDefaultNetwork parses the annotation defaultNetworkAnnotation: one network, in the form of parseSelections. It
// returns nil for an empty text. namespace is that of the pod.
func parseDefaultNetwork(text, namespace string) (*Selection, error) {
	all, err := readSelections(text)
	if err == nil && len(all) > 1 {
		err = fmt.Errorf("got %d networks, want one", len(all))
	}
	if err == nil && len(all) == 1 && all[0].IfName != "" && all[0].IfName != firstInterface {
		err = fmt.Errorf("the interface must be %s, not %q", firstInterface, all[0].IfName)
	}
	if err == nil && len(all) == 1 {
		all[0].IfName = ""
		err = complete(all, defaultNetworkSpace, namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", defaultNetworkAnnotation, err)
	}
	if len(all) == 0 {
		return nil, nil
	}
	all[0].IfName = firstInterface
	return &all[0], nil
}

// readSelections parses a list of networks in either form.
func readSelections(text string) (all []Selection, err error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	if strings.HasPrefix(text, "[") {
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields() // an unknown field must not be ignored
		if err := d.Decode(&all); err != nil {
			return nil, fmt.Errorf("not a list of networks: %w", err)
		}
		if d.More() {
			return nil, errors.New("unexpected text after the list")
		}
	} else {
		for part := range strings.SplitSeq(text, ",") {
			all = append(all, parseName(strings.TrimSpace(part)))
		}
	}
	if len(all) > maxNetworks {
		return nil, fmt.Errorf("got %d networks, the limit is %d", len(all), maxNetworks)
	}
	return all, nil
}

func parseName(text string) Selection {
	var s Selection
	text, s.IfName, _ = strings.Cut(text, "@")
	if ns, name, ok := strings.Cut(text, "/"); ok {
		s.Namespace, s.Name = ns, name
	} else {
		s.Name = text
	}
	return s
}

// complete sets defaults and checks the rest. unnamed is the namespace of a network without one, own that of the pod.
func complete(all []Selection, unnamed, own string) error {
	taken := map[string]bool{"lo": true, firstInterface: true}
	for i := range all {
		s := &all[i]
		s.Namespace = cmp.Or(s.Namespace, unnamed)
		s.IfName = cmp.Or(s.IfName, fmt.Sprintf("net%d", i+1))
		if !isObjectName(s.Namespace) || !isObjectName(s.Name) {
			return fmt.Errorf("%q is not a valid network; want [NAMESPACE/]NAME[@INTERFACE]", s.label())
		}
		if s.Namespace != own && !slices.Contains(sharedSpaces, s.Namespace) {
			return fmt.Errorf("network %s: the pod may select only networks of its own namespace %s, and of %s",
				s.label(), own, strings.Join(sharedSpaces, " and "))
		}
		if taken[s.IfName] {
			return fmt.Errorf("interface %q of network %s is already used", s.IfName, s.label())
		}
		if err := s.check(); err != nil {
			return fmt.Errorf("network %s: %w", s.label(), err)
		}
		taken[s.IfName] = true
	}
	return nil
}

// check returns what no plugin can do, in the terms of the annotation, for the event of the pod.
func (s *Selection) check() error {
	if len(s.DefaultRoute) > 0 {
		return errors.New("default-route is not supported; add a route to the configuration of the network, " +
			"or make it the default network of the pod with the annotation " + defaultNetworkAnnotation)
	}
	if len(s.PortMappings) > 0 {
		return errors.New("portMappings is not allowed; set hostPort in the ports of the pod's containers")
	}
	if e := utils.ValidateInterfaceName(s.IfName); e != nil {
		return fmt.Errorf("interface %q: %s", s.IfName, e.Details)
	}
	if s.MAC != "" {
		if _, err := net.ParseMAC(s.MAC); err != nil {
			return fmt.Errorf("mac %q is not an address such as 0a:58:0a:00:00:07", s.MAC)
		}
	}
	for _, ip := range s.IPs {
		_, addrErr := netip.ParseAddr(ip)
		if _, err := netip.ParsePrefix(ip); err != nil && addrErr != nil {
			return fmt.Errorf("ips: %q is not an address such as 10.0.0.7 or 10.0.0.7/24", ip)
		}
	}
	return nil
}

// taken returns an error if the selection has arguments that no plugin of the network accepts.
func (s *Selection) taken(n *Network) error {
	for name := range s.capabilities() {
		declared := func(p *libcni.PluginConfig) bool { return p.Network.Capabilities[name] }
		if !slices.ContainsFunc(n.Plugins, declared) {
			return fmt.Errorf("none of its plugins has the capability %q, which the pod requests", name)
		}
	}
	return nil
}

// capabilities returns the capability arguments of the selection, by the names in the CNI conventions.
func (s *Selection) capabilities() map[string]any {
	all := map[string]any{
		"mac":            s.MAC,
		"ips":            s.IPs,
		"infinibandGUID": s.InfinibandGUID,
		"bandwidth":      s.Bandwidth,
		"deviceID":       s.DeviceID,
	}
	maps.DeleteFunc(all, func(_ string, argument any) bool { return isEmpty(argument) })
	return all
}

// networkStatus is an entry of the annotation StatusAnnotation.
type networkStatus struct {
	Name      string   `json:"name"`
	Interface string   `json:"interface,omitempty"`
	IPs       []string `json:"ips,omitempty"`
	MAC       string   `json:"mac,omitempty"`
	MTU       int      `json:"mtu,omitempty"`
	Default   bool     `json:"default,omitempty"`
	DNS       struct {
		Nameservers []string `json:"nameservers,omitempty"`
		Domain      string   `json:"domain,omitempty"`
		Search      []string `json:"search,omitempty"`
	} `json:"dns"`
	Gateway []string `json:"gateway,omitempty"`
}

// StatusText returns the value of the annotation StatusAnnotation for the networks of a sandbox.
func (r *Record) StatusText() (string, error) {
	var all []networkStatus
	for i := range r.Attachments {
		a := &r.Attachments[i]
		s := networkStatus{Name: a.name(), Interface: a.IfName, Default: i == 0}
		result, err := a.result()
		if err != nil {
			return "", err
		}
		s.fill(result, a.IfName)
		all = append(all, s)
	}
	text, err := json.MarshalIndent(all, "", "    ")
	return string(text), err
}

func (s *networkStatus) fill(result *current.Result, ifName string) {
	inside := -1
	for i, f := range result.Interfaces {
		if f != nil && f.Sandbox != "" && f.Name == ifName {
			inside = i
			s.MAC, s.MTU = f.Mac, f.Mtu
		}
	}
	for _, ip := range result.IPs {
		if ip == nil || ip.Interface != nil && inside >= 0 && *ip.Interface != inside {
			continue
		}
		s.IPs = append(s.IPs, ip.Address.IP.String())
		if ip.Gateway != nil {
			s.Gateway = append(s.Gateway, ip.Gateway.String())
		}
	}
	s.DNS.Nameservers = result.DNS.Nameservers
	s.DNS.Domain = result.DNS.Domain
	s.DNS.Search = result.DNS.Search
}

// result returns the result of the chain, in the newest version.
func (a *Attachment) result() (*current.Result, error) {
	r, err := parseResult(a.Result)
	if err == nil {
		var c *current.Result
		if c, err = current.NewResultFromResult(r); err == nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("result of network %s: %w", a.name(), err)
}
