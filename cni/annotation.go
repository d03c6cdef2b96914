package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/utils"
)

// Annotations of the Network Plumbing Working Group's de-facto standard, version 1.3.
const (
	NetworksAnnotation = "k8s.v1.cni.cncf.io/networks"
	StatusAnnotation   = "k8s.v1.cni.cncf.io/network-status"
)

// DefaultNetworkAnnotation is Multus' annotation by which a pod gets another network than the node's own as its first.
const DefaultNetworkAnnotation = "v1.multus-cni.io/default-network"

// defaultNetworkSpace is where a default network is looked for if the annotation names no namespace, as with Multus.
const defaultNetworkSpace = "kube-system"

// firstInterface is a pod's interface in its first network.
const firstInterface = "eth0"

// maxNetworks bounds the additional networks of a pod.
const maxNetworks = 32

// Selection is one additional network that a pod asks for.
type Selection struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	IfName    string `json:"interface"`
	// Capability arguments, for plugins that declare them.
	MAC            string           `json:"mac"`
	IPs            []string         `json:"ips"`
	InfinibandGUID string           `json:"infiniband-guid"`
	PortMappings   []map[string]any `json:"portMappings"`
	Bandwidth      map[string]any   `json:"bandwidth"`
	DeviceID       string           `json:"deviceID"`
	CNIArgs        map[string]any   `json:"cni-args"`
	// DefaultRoute moves the pod's default route here, which is refused: the plugins' CHECK would take it for damage.
	DefaultRoute []string `json:"default-route"`
}

// label is how people know the network.
func (s *Selection) label() string { return s.Namespace + "/" + s.Name }

var objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// ParseSelections reads the annotation NetworksAnnotation: a JSON list, or names as [NAMESPACE/]NAME[@INTERFACE] with
// commas between. Interfaces without a name are net1, net2 and so on. namespace is the pod's.
func ParseSelections(text, namespace string) ([]Selection, error) {
	all, err := readSelections(text)
	if err == nil {
		err = complete(all, namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", NetworksAnnotation, err)
	}
	return all, nil
}

// ParseDefaultNetwork reads the annotation DefaultNetworkAnnotation: one network, in the form of ParseSelections. It
// gives nil for an empty text.
func ParseDefaultNetwork(text string) (*Selection, error) {
	all, err := readSelections(text)
	if err == nil && len(all) > 1 {
		err = fmt.Errorf("it names %d networks, want one", len(all))
	}
	if err == nil && len(all) == 1 && all[0].IfName != "" && all[0].IfName != firstInterface {
		err = fmt.Errorf("its interface is always %s, not %q", firstInterface, all[0].IfName)
	}
	if err == nil && len(all) == 1 {
		all[0].IfName = ""
		err = complete(all, defaultNetworkSpace)
	}
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", DefaultNetworkAnnotation, err)
	}
	if len(all) == 0 {
		return nil, nil
	}
	all[0].IfName = firstInterface
	return &all[0], nil
}

// readSelections reads a list of networks in either of its forms.
func readSelections(text string) (all []Selection, err error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	if strings.HasPrefix(text, "[") {
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields() // what is not understood must not be left out silently
		if err := d.Decode(&all); err != nil {
			return nil, fmt.Errorf("it is no list of networks: %w", err)
		}
		if d.More() {
			return nil, errors.New("there is something behind the list")
		}
	} else {
		for part := range strings.SplitSeq(text, ",") {
			all = append(all, parseName(strings.TrimSpace(part)))
		}
	}
	if len(all) > maxNetworks {
		return nil, fmt.Errorf("it names %d networks, at most %d are possible", len(all), maxNetworks)
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

// complete fills in what is left out and checks the rest.
func complete(all []Selection, namespace string) error {
	taken := map[string]bool{"lo": true, firstInterface: true}
	for i := range all {
		s := &all[i]
		if s.Namespace == "" {
			s.Namespace = namespace
		}
		if s.IfName == "" {
			s.IfName = fmt.Sprintf("net%d", i+1)
		}
		if !objectName.MatchString(s.Namespace) || !objectName.MatchString(s.Name) {
			return fmt.Errorf("%q is no name of a network; want [NAMESPACE/]NAME[@INTERFACE]", s.label())
		}
		if taken[s.IfName] {
			return fmt.Errorf("interface %q of network %s is taken", s.IfName, s.label())
		}
		if err := s.check(); err != nil {
			return fmt.Errorf("network %s: %w", s.label(), err)
		}
		taken[s.IfName] = true
	}
	return nil
}

// check finds what no plugin could do, so that the pod's event says it in the annotation's terms.
func (s *Selection) check() error {
	if len(s.DefaultRoute) > 0 {
		return errors.New("default-route is not supported; give the network's own configuration a route, or make it the pod's " +
			"default network by the annotation " + DefaultNetworkAnnotation)
	}
	if e := utils.ValidateInterfaceName(s.IfName); e != nil {
		return fmt.Errorf("interface %q: %s", s.IfName, e.Details)
	}
	if s.MAC != "" {
		if _, err := net.ParseMAC(s.MAC); err != nil {
			return fmt.Errorf("mac %q is no address such as 0a:58:0a:00:00:07", s.MAC)
		}
	}
	for _, ip := range s.IPs {
		_, addrErr := netip.ParseAddr(ip)
		if _, err := netip.ParsePrefix(ip); err != nil && addrErr != nil {
			return fmt.Errorf("ips: %q is no address such as 10.0.0.7 or 10.0.0.7/24", ip)
		}
	}
	return nil
}

// taken says what the selection asks for and no plugin of the network takes; nil if there is nothing.
func (s *Selection) taken(n *Network) error {
	for name := range s.capabilities() {
		declared := func(p *libcni.PluginConfig) bool { return p.Network.Capabilities[name] }
		if !slices.ContainsFunc(n.Plugins, declared) {
			return fmt.Errorf("no plugin of it has the capability %q, which the pod asks for", name)
		}
	}
	return nil
}

// capabilities are the selection's capability arguments, by the names that CNI's conventions give them.
func (s *Selection) capabilities() map[string]any {
	all := map[string]any{}
	if s.MAC != "" {
		all["mac"] = s.MAC
	}
	if len(s.IPs) > 0 {
		all["ips"] = s.IPs
	}
	if s.InfinibandGUID != "" {
		all["infinibandGUID"] = s.InfinibandGUID
	}
	if len(s.PortMappings) > 0 {
		all["portMappings"] = s.PortMappings
	}
	if len(s.Bandwidth) > 0 {
		all["bandwidth"] = s.Bandwidth
	}
	if s.DeviceID != "" {
		all["deviceID"] = s.DeviceID
	}
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

// StatusText gives the value of the annotation StatusAnnotation for a sandbox's networks.
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
			inside, s.MAC, s.MTU = i, f.Mac, f.Mtu
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
	s.DNS.Nameservers, s.DNS.Domain, s.DNS.Search = result.DNS.Nameservers, result.DNS.Domain, result.DNS.Search
}

// result is what the chain gave, in the newest version.
func (a *Attachment) result() (*current.Result, error) {
	r, err := create.CreateFromBytes(a.Result)
	if err == nil {
		var c *current.Result
		if c, err = current.NewResultFromResult(r); err == nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("result of network %s: %w", a.name(), err)
}
