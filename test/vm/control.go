package main

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net"
	"strings"
	"time"
)

// control is the connection to guest/vmctl, which runs commands in a machine with a kernel of its own. A command goes
// out as one line of base64, its exit code and output come back as another.
type control struct {
	conn    net.Conn
	lines   *bufio.Reader
	boot    string // the kernel's boot ID
	console string // the file that explains a machine that does not boot
}

func newControl(conn net.Conn, console string) *control {
	return &control{
		conn:    conn,
		lines:   bufio.NewReader(conn),
		console: console,
	}
}

// awaitBoot waits until the machine has booted (again) and accepts commands.
func (c *control) awaitBoot(limit time.Duration) error {
	if err := c.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	for {
		line, err := c.lines.ReadString('\n')
		if err != nil {
			return fmt.Errorf("wait for the machine to boot: %w\n%s", err, tail(c.console, 30))
		}
		if _, id, ok := strings.Cut(strings.TrimSpace(line), "READY "); ok && id != c.boot {
			c.boot = id
			return nil
		}
	}
}

// sh runs a command in the machine and returns its output.
func (c *control) sh(limit time.Duration, command string) (string, error) {
	if err := c.conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	if err := c.order(command); err != nil {
		return "", err
	}
	for {
		line, err := c.lines.ReadString('\n')
		if err != nil {
			return "", fmt.Errorf("wait for %q in the machine: %w", command, err)
		}
		var code int
		var text string
		if n, _ := fmt.Sscanf(strings.TrimSpace(line), "R %d %s", &code, &text); n == 0 {
			continue
		}
		out, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return "", fmt.Errorf("read the answer to %q: %w", command, err)
		}
		if code != 0 {
			return string(out), fmt.Errorf("%q in the machine: exit code %d: %s", command, code, out)
		}
		return string(out), nil
	}
}

// order sends a command without waiting for an answer.
func (c *control) order(command string) error {
	_, err := fmt.Fprintf(c.conn, "%s\n", base64.StdEncoding.EncodeToString([]byte(command)))
	return err
}

func (c *control) close() { _ = c.conn.Close() }
