package spec

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// serviceVariables returns the variables with the addresses of services: always that of default/kubernetes, and those
// of the pod's namespace unless spec.enableServiceLinks is false. A service named kubernetes in the pod's own
// namespace overrides the one in namespace default. It is an error if they have more than limit bytes.
func serviceVariables(pod *corev1.Pod, services []*corev1.Service, limit int) (map[string]string, error) {
	links := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
	seen := map[string]*corev1.Service{}
	for _, s := range services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		own := links && s.Namespace == pod.Namespace
		master := s.Namespace == corev1.NamespaceDefault && s.Name == "kubernetes"
		if own || master && seen[s.Name] == nil {
			seen[s.Name] = s
		}
	}
	byName := func(a, b *corev1.Service) int { return strings.Compare(a.Name, b.Name) }
	vars := newEnvironment(limit)
	for _, s := range slices.SortedFunc(maps.Values(seen), byName) {
		if err := addService(vars, s); err != nil {
			return nil, err
		}
	}
	return vars.values, nil
}

// addService sets NAME_SERVICE_HOST, NAME_SERVICE_PORT and one NAME_SERVICE_PORT_X for each named port, and the older
// variables of Docker links: NAME_PORT, and NAME_PORT_80_TCP with its parts for each port.
func addService(vars *environment, s *corev1.Service) error {
	name, ip := variableName(s.Name), s.Spec.ClusterIP
	if err := vars.set(name+"_SERVICE_HOST", ip); err != nil {
		return err
	}
	for i, p := range s.Spec.Ports {
		number := strconv.Itoa(int(p.Port))
		protocol := cmp.Or(strings.ToLower(string(p.Protocol)), "tcp")
		url := protocol + "://" + hostPort(ip, number)
		prefix := "_PORT_" + number + "_" + strings.ToUpper(protocol)
		port := map[string]string{prefix: url, prefix + "_PROTO": protocol, prefix + "_PORT": number, prefix + "_ADDR": ip}
		if i == 0 {
			port["_SERVICE_PORT"], port["_PORT"] = number, url
		}
		if p.Name != "" {
			port["_SERVICE_PORT_"+variableName(p.Name)] = number
		}
		if err := setAll(vars, name, port); err != nil {
			return err
		}
	}
	return nil
}

func variableName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }

// hostPort joins an address and a port for a URL.
func hostPort(ip, port string) string {
	if strings.Contains(ip, ":") {
		ip = "[" + ip + "]"
	}
	return ip + ":" + port
}
