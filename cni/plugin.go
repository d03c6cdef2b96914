package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/nodelet/nodelet/cni/shim"
)

// settings are the fields of the configuration that Install writes.
type settings struct {
	CNIVersion string   `json:"cniVersion"`
	Socket     string   `json:"socket"`
	Dir        string   `json:"dir"`
	BinDirs    []string `json:"binDirs"`
}

// Plugin handles a call that package shim has left to main. It prints what the CNI specification demands and returns
// the exit code. It asks the agent once more. Without the agent DEL and CHECK work.
func Plugin(r *shim.Request, out io.Writer) int {
	var s settings
	if err := json.Unmarshal([]byte(r.Config), &s); err != nil || s.Socket == "" || s.Dir == "" {
		return fail(out, s.CNIVersion, types.NewError(types.ErrInvalidNetworkConfig,
			fmt.Sprintf("the network configuration on standard input must be a JSON object "+
				`with nodelet's "socket" and "dir": %v`, err), ""))
	}
	if !slices.Contains([]string{"ADD", "CHECK", "DEL"}, r.Command) {
		return fail(out, s.CNIVersion, types.NewError(types.ErrInvalidEnvironmentVariables,
			fmt.Sprintf("CNI_COMMAND is %q; want ADD, CHECK, DEL or VERSION", r.Command), ""))
	}
	if answer := shim.Ask(s.Socket, r); len(answer) > 0 {
		_, _ = out.Write(answer[1:])
		return int(answer[0])
	}
	if err := offline(r, &s); err != nil {
		return fail(out, s.CNIVersion, err)
	}
	return shim.Done
}

// offline runs DEL with the record of the sandbox, else with the last known network of the node, and CHECK with the
// record. CRI-O has no address for a sandbox whose CHECK fails at its start, and the agent would replace its pod.
func offline(r *shim.Request, s *settings) error {
	d := NewDriver(DriverConfig{Dir: s.Dir, BinDirs: s.BinDirs})
	switch r.Command {
	case "CHECK":
		return d.Check(context.Background(), r.ContainerID)
	case "DEL":
		own, _ := readNetwork(filepath.Join(s.Dir, ownFile))
		return d.Detach(context.Background(), r.ContainerID, r.NetNS, unrecorded(r, own))
	}
	return types.NewError(types.ErrTryAgainLater,
		fmt.Sprintf("nodelet does not answer at %s: is the agent running?", s.Socket), "")
}

func fail(out io.Writer, version string, err error) int {
	_, _ = out.Write(failure(version, err))
	return shim.Failed
}
