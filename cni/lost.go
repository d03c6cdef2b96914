package cni

import (
	"context"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/iptables"
)

// The reference plugins portmap and bandwidth set up rules and devices on the node that outlive the sandbox's
// namespace. If the record is lost, these traces are all that is left.

// hostPortRule matches portmap's comment on the rule for the host ports of a sandbox, in the output of iptables -S. It
// contains the network and the sandbox.
var hostPortRule = regexp.MustCompile(`--comment "dnat name: \\"([^"\\]+)\\" id: \\"([^"\\]+)\\"" .*-j CNI-DN-`)

// hostPorts returns the sandboxes for which portmap has rules, with their networks. An error says that the rules of an
// address family could not be listed.
func hostPorts(ctx context.Context) (found [][2]string, err error) {
	var errs []error
	for _, tool := range []iptables.Tool{iptables.IPv4, iptables.IPv6} {
		out, _, err := tool.Look(ctx, "nat", "-S")
		if err != nil {
			errs = append(errs, fmt.Errorf("list rules of host ports: %w", err))
		}
		for _, m := range hostPortRule.FindAllStringSubmatch(out, -1) {
			if pair := [2]string{m[1], m[2]}; !slices.Contains(found, pair) {
				found = append(found, pair)
			}
		}
	}
	return found, errors.Join(errs...)
}

// reapHostPorts detaches sandboxes that are gone but still have host ports in one of the networks.
func (d *Driver) reapHostPorts(
	ctx context.Context, networks map[string]*Network, live map[string]bool,
) (gone []string, err error) {
	found, err := hostPorts(ctx)
	errs := []error{err}
	for _, pair := range found {
		n, id := networks[pair[0]], pair[1]
		if n == nil {
			continue
		}
		left, err := d.isLeft(n, id, fmt.Sprint("host ports of ", pair), time.Time{}, live)
		if left {
			err = d.detachLost(ctx, n, id)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("host ports of removed sandbox %s: %w", id, err))
		} else if left {
			gone = append(gone, id)
		}
	}
	return gone, errors.Join(errs...)
}

// detachLost detaches a sandbox without a record from a network. It runs the whole chain of plugins, which releases
// more than the host ports.
func (d *Driver) detachLost(ctx context.Context, n *Network, id string) error {
	config, err := flatten(n, nil)
	if err != nil {
		return err
	}
	// portmap does nothing without a port mapping; any one will do.
	ports := map[string]any{"portMappings": []map[string]any{{"hostPort": 1, "containerPort": 1, "protocol": "tcp"}}}
	return d.Detach(ctx, id, "", &Record{Sandbox: id, Attachments: []Attachment{
		{Network: n.Name, IfName: firstInterface, Config: config, Capabilities: ports}}})
}

// limiter returns the name of the device with which the plugin bandwidth limits a sandbox: "bwp" and a part of a hash.
func limiter(network, sandbox string) string {
	return fmt.Sprintf("bwp%x", sha512.Sum512([]byte(network+sandbox)))[:15]
}

// removeLimiter removes the device of a sandbox's bandwidth limit, if there is one.
func (r *Reaped) removeLimiter(network, sandbox string) error {
	devices, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list devices of bandwidth limits: %w", err)
	}
	name := limiter(network, sandbox)
	i := slices.IndexFunc(devices, func(d net.Interface) bool { return d.Name == name })
	if i < 0 {
		return nil
	}
	if err := deleteLink(devices[i].Index); err != nil {
		return fmt.Errorf("remove device %s of a bandwidth limit: %w", name, err)
	}
	r.Devices = append(r.Devices, name)
	return nil
}

// deleteLink removes a network device (RTM_DELLINK of rtnetlink). A device that does not exist is not an error.
func deleteLink(index int) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// A header of 16 bytes (length, type, flags), then ifinfomsg with the index of the device at offset 4.
	b := make([]byte, unix.NLMSG_HDRLEN+unix.SizeofIfInfomsg)
	order := binary.NativeEndian
	order.PutUint32(b, uint32(len(b)))
	order.PutUint16(b[4:], unix.RTM_DELLINK)
	order.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	order.PutUint32(b[unix.NLMSG_HDRLEN+4:], uint32(index))
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.NLMSG_HDRLEN+4 || order.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("unexpected answer of the kernel")
	}
	if e := unix.Errno(-int32(order.Uint32(answer[unix.NLMSG_HDRLEN:]))); e != 0 && e != unix.ENODEV {
		return e
	}
	return nil
}
