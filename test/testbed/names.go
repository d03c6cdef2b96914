package testbed

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

const (
	// StateEnv overrides the directory that holds one state directory per testbed.
	StateEnv = "NODELET_TESTBED_STATE"
	// CacheEnv overrides the directory that holds built programs and images.
	CacheEnv = "NODELET_TESTBED_CACHE"
	// DefaultName is the testbed used when no name is given.
	DefaultName = "default"

	defaultStateRoot = "/var/lib/nodelet-testbed"
	netnsDir         = "/run/netns"
	prefix           = "nodelet-tb-"
)

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$`)

// names derives every path and every kernel object's name from the testbed's name alone, so that Down can find them
// when nothing else is left to read.
type names struct {
	name string
	root string // holds the state directories of all testbeds
}

func newNames(name string) (names, error) {
	if name == "" {
		name = DefaultName
	}
	if !validName.MatchString(name) {
		return names{}, fmt.Errorf("testbed name %q: use 1 to 20 of a-z, 0-9 and '-', with a letter or digit at both ends", name)
	}
	root := os.Getenv(StateEnv)
	if root == "" {
		root = defaultStateRoot
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return names{}, fmt.Errorf("resolve %s: %w", StateEnv, err)
	}
	return names{name: name, root: root}, nil
}

func (n names) dir() string       { return filepath.Join(n.root, n.name) }
func (n names) stateFile() string { return filepath.Join(n.dir(), "state.json") }

// shimSockets is outside of the state directory: such a path plus 64 characters has to fit into a socket address.
func (n names) runDir() string           { return "/run/" + n.hostLink() }
func (n names) shimSockets(i int) string { return filepath.Join(n.runDir(), strconv.Itoa(i)) }

func (n names) pkiDir() string      { return filepath.Join(n.dir(), "pki") }
func (n names) logDir() string      { return filepath.Join(n.dir(), "logs") }
func (n names) log(r string) string { return filepath.Join(n.logDir(), r+".log") }
func (n names) kubeconfig(user string) string {
	return filepath.Join(n.dir(), user+".kubeconfig")
}

// netns is the control plane's network namespace; a dot, which no testbed name holds, sets the nodes' apart.
func (n names) netns() string           { return prefix + n.name }
func (n names) nodeNetns(i int) string  { return n.netns() + "." + strconv.Itoa(i) }
func (n names) nodeDir(i int) string    { return filepath.Join(n.dir(), "n"+strconv.Itoa(i)) }
func (n names) nodeName(i int) string   { return n.name + "-" + strconv.Itoa(i) }
func (n names) cgroup() string          { return "/" + prefix + n.name }
func (n names) slice() string           { return cgroupPath(DriverSystemd, prefix+n.name) }
func (n names) nodeCgroup(i int) string { return n.cgroup() + "/n" + strconv.Itoa(i) }
func (n names) cniNetwork(i int) string { return n.nodeNetns(i) }

// runtimeSocket is where the CRI of node i listens.
func (n names) runtimeSocket(i int, runtime string) string {
	return filepath.Join(n.nodeDir(i), runtimeRole(runtime)+".sock")
}

// hostLink is the host's end of the veth pair; link names have at most 15 characters, so it carries a hash.
func (n names) hostLink() string {
	sum := sha256.Sum256([]byte(n.name))
	return "ntb" + hex.EncodeToString(sum[:4])
}

// allNetns lists the testbed's network namespaces which exist now.
func (n names) allNetns() ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var found []string
	for _, e := range entries {
		if e.Name() == n.netns() || strings.HasPrefix(e.Name(), n.netns()+".") {
			found = append(found, e.Name())
		}
	}
	return found, nil
}
