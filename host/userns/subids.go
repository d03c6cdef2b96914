package userns

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"os/user"
)

// owner is the user whose subordinate IDs pods get.
const owner = "kubelet"

// subordinateIDs returns the range of IDs that is reserved for a user, according to getsubids(1). It is empty if there
// is no such user or no such program; then, as with the kubelet, all IDs may be used except the first IDsPerPod.
func subordinateIDs(name string) (Range, error) {
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
		return Range{}, fmt.Errorf("getsubids %s: %w; give the user %[1]s a range in /etc/subuid, or remove the user",
			name, err)
	}
	gids, err := exec.Command(program, "-g", name).Output()
	if err != nil {
		return Range{}, fmt.Errorf("getsubids -g %s: %w; give the user %[1]s a range in /etc/subgid, or remove the user",
			name, err)
	}
	if !bytes.Equal(uids, gids) {
		return Range{}, fmt.Errorf("the user %s has different ranges in /etc/subuid and /etc/subgid; make them the same",
			name)
	}
	return parseSubIDs(string(uids))
}
