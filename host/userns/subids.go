package userns

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"os/user"
)

// subordinateIDs returns the range of IDs that is reserved for the user kubelet, according to getsubids(1). It is empty
// if there is no such user or no such program; then, as with the kubelet, all IDs may be used except the first
// IDsPerPod.
func subordinateIDs() (Range, error) {
	const name = "kubelet"
	_, err := user.Lookup(name)
	if _, ok := errors.AsType[user.UnknownUserError](err); ok {
		return Range{}, nil
	}
	program, err := exec.LookPath("getsubids")
	if err != nil {
		return Range{}, nil
	}
	uids, err := exec.Command(program, name).Output()
	if err != nil {
		return Range{}, fmt.Errorf("getsubids %s: %w; give the user kubelet a range in /etc/subuid, or remove the user",
			name, err)
	}
	gids, err := exec.Command(program, "-g", name).Output()
	if err != nil {
		return Range{}, fmt.Errorf("getsubids -g %s: %w; give the user kubelet a range in /etc/subgid, or remove the user",
			name, err)
	}
	if !bytes.Equal(uids, gids) {
		return Range{}, errors.New("the user kubelet has different ranges in /etc/subuid and /etc/subgid; make them the same")
	}
	return parseSubIDs(string(uids))
}
