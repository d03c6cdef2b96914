package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// mappings is this machine's limit of mappings a process. Each page of a process in a machine of User-Mode Linux may be
// one: with the usual 65,530 a process of 256 MiB or more can reach the limit, and then waits for ever for its next
// page.
type mappings struct {
	limit string // the kernel's file
	// kept has the limit that was before a run has raised it. Runs that need the high limit share its lock. A reboot
	// removes it, as it does what they have set.
	kept string
}

const enoughMappings = "4194304"

// machineMappings returns the limit of this machine.
func machineMappings() mappings {
	return mappings{limit: "/proc/sys/vm/max_map_count", kept: "/run/lock/nodelet-vm-mappings"}
}

// allow raises the limit. The last run that calls restore sets what was, also if another one was killed. restore may be
// called several times.
func (m mappings) allow() (restore func(), err error) {
	f, err := os.OpenFile(m.kept, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_SH); err == nil { // waits at most while another one restores
		err = m.raise()
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("raise %s: %w", m.limit, err)
	}
	return sync.OnceFunc(func() {
		defer f.Close()
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			m.restore()
		}
	}), nil
}

func (m mappings) raise() error {
	was, err := os.ReadFile(m.limit)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(was)))
	if enough, _ := strconv.Atoi(enoughMappings); err != nil || n >= enough {
		return err
	}
	if err := os.WriteFile(m.kept, was, 0o600); err != nil {
		return err
	}
	return os.WriteFile(m.limit, []byte(enoughMappings), 0)
}

// restore sets the limit that was before, unless another program has changed it since.
func (m mappings) restore() {
	was, err := os.ReadFile(m.kept)
	now, err2 := os.ReadFile(m.limit)
	if errors.Join(err, err2) != nil || len(was) == 0 {
		return
	}
	if strings.TrimSpace(string(now)) == enoughMappings && os.WriteFile(m.limit, was, 0) != nil {
		return
	}
	_ = os.Truncate(m.kept, 0)
}
