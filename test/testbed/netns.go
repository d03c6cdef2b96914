package testbed

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// ClusterDomain is the DNS domain of the cluster in each testbed.
const ClusterDomain = "cluster.local"

// Addresses. Each testbed has a /24 of its own: .1 is the host, .2 the control plane, .10 and up the nodes. Packets
// of pods and services stay within the testbed, so all testbeds use the same ranges for them.
const (
	podCIDR     = "10.244.0.0/16"
	nodePodMask = 20 // 16 nodes with 4,094 addresses each
	serviceCIDR = "10.96.0.0/16"
	serviceAPI  = "10.96.0.1"
	serviceDNS  = "10.96.0.10"
	maxNodes    = 40

	// The same for IPv6, with Options.DualStack.
	podCIDR6     = "fd00:10:244::/56"
	serviceCIDR6 = "fd00:10:96::/112"
)

func subnet(x int) netip.Prefix { return netip.PrefixFrom(address(x, 0), 24) }
func address(x, host int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 77, byte(x), byte(host)})
}
func address6(x, host int) string { return fmt.Sprintf("fd00:10:77:%x::%x", x, host) }
func nodePodCIDR6(i int) string   { return fmt.Sprintf("fd00:10:244:%x::/64", i) }
func nodePodCIDR(i int) string {
	return fmt.Sprintf("10.244.%d.0/%d", i<<(24-nodePodMask), nodePodMask)
}

// freeSubnet returns an x for 10.77.x.0/24 that overlaps no range in use. The search starts at a value that depends
// on the name, so that a testbed usually keeps its subnet.
func freeSubnet(name string, used []netip.Prefix) (int, error) {
	h := fnv.New32a()
	h.Write([]byte(name))
	first := int(h.Sum32() % 256)
next:
	for i := range 256 {
		x := (first + i) % 256
		for _, u := range used {
			if u.Bits() > 0 && u.Overlaps(subnet(x)) {
				continue next
			}
		}
		return x, nil
	}
	return 0, errors.New("find a free /24 in 10.77.0.0/16: all overlap routes of this host (see: ip route)")
}

// parseRoutes reads the destinations in /proc/net/route, where addresses and masks are little-endian hexadecimal
// numbers.
func parseRoutes(table string) ([]netip.Prefix, error) {
	var routes []netip.Prefix
	for n, line := range strings.Split(strings.TrimSpace(table), "\n") {
		f := strings.Fields(line)
		if n == 0 || len(f) < 8 {
			continue // the heading
		}
		dst, err := hex.DecodeString(f[1])
		mask, err2 := hex.DecodeString(f[7])
		if err := errors.Join(err, err2); err != nil || len(dst) != 4 || len(mask) != 4 {
			return nil, fmt.Errorf("read route %q: %w", line, err)
		}
		var ip [4]byte
		binary.BigEndian.PutUint32(ip[:], binary.LittleEndian.Uint32(dst))
		bits := 0
		for m := binary.LittleEndian.Uint32(mask); m != 0; m <<= 1 {
			bits++
		}
		routes = append(routes, netip.PrefixFrom(netip.AddrFrom4(ip), bits))
	}
	return routes, nil
}

// setupNetwork creates the control plane's namespace with a bridge, connects the host to it, and returns the x of its
// subnet.
func (n names) setupNetwork(ctx context.Context) (int, error) {
	// All testbeds of the machine use this lock until the route of a chosen subnet exists.
	unlock, err := lockDir(ctx, "/run")
	if err != nil {
		return 0, err
	}
	defer unlock()
	table, err := os.ReadFile("/proc/self/net/route")
	if err != nil {
		return 0, err
	}
	routes, err := parseRoutes(string(table))
	if err != nil {
		return 0, err
	}
	x, err := freeSubnet(n.name, routes)
	if err != nil {
		return 0, err
	}
	ns, host := n.netns(), n.hostLink()
	return x, ip(ctx,
		"netns add "+ns,
		"-n "+ns+" link set lo up",
		"-n "+ns+" link add br0 type bridge",
		"-n "+ns+" link set br0 up",
		"-n "+ns+" addr add "+address(x, 2).String()+"/24 dev br0",
		"link add "+host+" type veth peer name host netns "+ns,
		"-n "+ns+" link set host master br0 up",
		"addr add "+address(x, 1).String()+"/24 dev "+host,
		"link set "+host+" up",
	)
}

// setupNodeNetwork creates node i's namespace, connects it to the bridge, and adds routes to its pods everywhere.
// There is no default route, so that a connection to the outside, such as a pull from a registry, fails at once
// instead of with a timeout.
func (n names) setupNodeNetwork(ctx context.Context, x, i int, o Options) error {
	cp, ns := n.netns(), n.nodeNetns(i)
	link, addr := "n"+strconv.Itoa(i), address(x, 10+i).String()
	err := ip(ctx,
		"netns add "+ns,
		"-n "+ns+" link set lo up",
		"-n "+cp+" link add "+link+" type veth peer name eth0 netns "+ns,
		"-n "+cp+" link set "+link+" master br0 up",
		"-n "+ns+" addr add "+addr+"/24 dev eth0",
		"-n "+ns+" link set eth0 up",
	)
	if err != nil {
		return err
	}
	// without a default route, packets to a service need a route before kube-proxy translates their address
	if o.KubeProxy {
		if err := ip(ctx, "-n "+ns+" route add "+serviceCIDR+" via "+address(x, 2).String()); err != nil {
			return err
		}
	}
	if o.DualStack {
		if err := n.setupNodeNetwork6(ctx, x, i); err != nil {
			return err
		}
	}
	if o.Network == "none" {
		return n.forward(ctx, ns) // the network add-on adds the routes
	}
	if err := ip(ctx, "-n "+cp+" route add "+nodePodCIDR(i)+" via "+addr); err != nil {
		return err
	}
	for j := range i {
		err := ip(ctx,
			"-n "+ns+" route add "+nodePodCIDR(j)+" via "+address(x, 10+j).String(),
			"-n "+n.nodeNetns(j)+" route add "+nodePodCIDR(i)+" via "+addr,
		)
		if err != nil {
			return err
		}
	}
	return n.forward(ctx, ns)
}

// setupNodeNetwork6 does the same for IPv6. It skips duplicate address detection, so that addresses work at once.
func (n names) setupNodeNetwork6(ctx context.Context, x, i int) error {
	cp, ns := n.netns(), n.nodeNetns(i)
	addr := address6(x, 10+i)
	lines := []string{
		"-n " + cp + " addr replace " + address6(x, 2) + "/64 dev br0 nodad",
		"-n " + ns + " addr add " + addr + "/64 dev eth0 nodad",
		"-n " + cp + " route add " + nodePodCIDR6(i) + " via " + addr,
		"-n " + ns + " route add " + serviceCIDR6 + " via " + address6(x, 2),
	}
	for j := range i {
		lines = append(lines,
			"-n "+ns+" route add "+nodePodCIDR6(j)+" via "+address6(x, 10+j),
			"-n "+n.nodeNetns(j)+" route add "+nodePodCIDR6(i)+" via "+addr,
		)
	}
	return ip(ctx, lines...)
}

// forward lets a node forward packets. /proc/sys/net shows the namespace of the process that reads or writes it.
func (n names) forward(ctx context.Context, ns string) error {
	_, err := run(ctx, "nsenter", "--net="+netnsDir+"/"+ns, "--", "sh", "-c",
		"echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
	return err
}

// removeNetwork removes links and namespaces. It is no error if they are gone. The kernel removes links with their
// namespace.
func (n names) removeNetwork(ctx context.Context) error {
	var errs []error
	if _, err := os.Stat("/sys/class/net/" + n.hostLink()); err == nil {
		errs = append(errs, ip(ctx, "link del "+n.hostLink()))
	}
	all, err := n.allNetns()
	errs = append(errs, err)
	for _, ns := range all {
		errs = append(errs, ip(ctx, "netns del "+ns))
	}
	return errors.Join(errs...)
}

// ip runs iproute2's ip once for each line.
func ip(ctx context.Context, lines ...string) error {
	for _, l := range lines {
		if _, err := run(ctx, "ip", strings.Fields(l)...); err != nil {
			return err
		}
	}
	return nil
}

// run runs a command and returns its standard output. The error contains its standard error.
func run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
