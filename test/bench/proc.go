package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
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
