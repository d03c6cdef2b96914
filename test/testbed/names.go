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
	// StateEnv is the environment variable with the directory of the testbeds' state directories.
	StateEnv = "NODELET_TESTBED_STATE"
	// CacheEnv is the environment variable with the directory of built programs and images.
	CacheEnv = "NODELET_TESTBED_CACHE"
	// KubernetesEnv is the environment variable with the minor version of Kubernetes, for example 1.36.
	KubernetesEnv = "NODELET_TESTBED_KUBERNETES"
	// LogsEnv is the environment variable with the directory where KeepLogs puts logs; empty: nowhere.
	LogsEnv = "NODELET_TESTBED_LOGS"
	// DefaultName is the name of a testbed without a name in its options.
	DefaultName = "default"

	defaultStateRoot = "/var/lib/nodelet-testbed"
	netnsDir         = "/run/netns"
	prefix           = "nodelet-tb-"
)

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$`)

// names derives all paths and the names of all kernel objects from the testbed's name, so that Down finds them
// without a state file.
type names struct {
	name string
	root string // parent of the state directories of all testbeds
}

func newNames(name string) (names, error) {
	if name == "" {
		name = DefaultName
	}
	if !validName.MatchString(name) {
		return names{}, fmt.Errorf(
			"testbed name %q: use 1 to 20 of a-z, 0-9 and '-', with a letter or digit at both ends",
			name,
		)
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

// shimSockets is outside the state directory, because the path and 64 characters must fit into a socket address.
func (n names) runDir() string           { return "/run/" + n.hostLink() }
func (n names) shimSockets(i int) string { return filepath.Join(n.runDir(), strconv.Itoa(i)) }

func (n names) pkiDir() string      { return filepath.Join(n.dir(), "pki") }
func (n names) log(r string) string { return filepath.Join(n.logDir(), r+".log") }

// logDir is the directory with the logs of the testbed's processes.
func (n names) logDir() string { return filepath.Join(n.dir(), "logs") }

func (n names) kubeconfig(user string) string {
	return filepath.Join(n.dir(), user+".kubeconfig")
}

// netns is the control plane's network namespace. The nodes' namespaces have a dot, which no name of a testbed has.
func (n names) netns() string           { return prefix + n.name }
func (n names) nodeNetns(i int) string  { return n.netns() + "." + strconv.Itoa(i) }
func (n names) nodeDir(i int) string    { return filepath.Join(n.dir(), "n"+strconv.Itoa(i)) }
func (n names) nodeName(i int) string   { return n.name + "-" + strconv.Itoa(i) }
func (n names) cgroup() string          { return "/" + prefix + n.name }
func (n names) slice() string           { return cgroupPath(DriverSystemd, prefix+n.name) }
func (n names) nodeCgroup(i int) string { return n.cgroup() + "/n" + strconv.Itoa(i) }
func (n names) cniNetwork(i int) string { return n.nodeNetns(i) }

// runtimeSocket returns the path of the CRI socket of node i.
func (n names) runtimeSocket(i int, runtime string) string {
	return filepath.Join(n.nodeDir(i), runtimeRole(runtime)+".sock")
}

// hostLink is the name of the host's end of the veth pair. It contains a hash, because link names have at most 15
// characters.
func (n names) hostLink() string {
	sum := sha256.Sum256([]byte(n.name))
	return "ntb" + hex.EncodeToString(sum[:4])
}

// allNetns lists the existing network namespaces of the testbed.
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
