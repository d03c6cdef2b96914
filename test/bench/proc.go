package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is USER_HZ, the unit of times in /proc/PID/stat; it is 100 on every Linux that Go runs on.
const ticksPerSecond = 100

// cpuTime returns the user and system CPU time of a process.
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the agent's CPU time: %w", err)
	}
	// The name in parentheses may hold spaces; what follows it starts with field 3.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const utime, stime = 14 - 3, 15 - 3
	var ticks int64
	for _, i := range []int{utime, stime} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the agent's CPU time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// usage is what a process has used so far.
type usage struct {
	cpu     time.Duration
	wakeUps int64 // how often one of its threads was made to run again after it had waited
	written int64 // bytes that it caused to be sent to disks
}

func usageOf(pid int) (u usage, err error) {
	if u.cpu, err = cpuTime(pid); err != nil {
		return usage{}, err
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		return usage{}, err
	}
	for _, status := range threads {
		n, err := procField(status, "voluntary_ctxt_switches:")
		if errors.Is(err, os.ErrNotExist) {
			continue // the thread has ended
		}
		if err != nil {
			return usage{}, err
		}
		u.wakeUps += n
	}
	u.written, err = procField(fmt.Sprintf("/proc/%d/io", pid), "write_bytes:")
	return u, err
}

// procField returns the number after name in a file of /proc that has one name a line.
func procField(file, name string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == name {
			return strconv.ParseInt(fields[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("read %s: no field %s", file, name)
}

// memory returns the resident and the private dirty memory of a process in MiB.
func memory(pid int) (rss, private float64, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read the agent's memory: %w", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.ParseFloat(fields[1], 64)
		switch fields[0] {
		case "Rss:":
			rss = kib / 1024
		case "Private_Dirty:":
			private = kib / 1024
		}
	}
	if rss == 0 {
		return 0, 0, fmt.Errorf("read the agent's memory: no Rss in /proc/%d/smaps_rollup", pid)
	}
	return rss, private, nil
}
