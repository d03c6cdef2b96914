// Package shim is the fast path of the nodelet program when the runtime runs it as a CNI plugin, under the name
// nodelet-cni: it passes the call to the agent over a unix socket, prints the answer, and ends the process.
//
// It owns nothing and decides nothing. Its init runs before those of the agent's many packages, which would take longer
// than the call. For this it imports nothing except os and syscall; imports_test.go checks that. It leaves unusual
// cases (no agent, a call that it cannot parse) to main, which asks Pending. The runtime calls it; a crash leaves
// nothing behind.
package shim

import (
	"os"
	"syscall"
)

// Name is the name of the program as a CNI plugin.
const Name = "nodelet-cni"

// versionText is the answer to the verb VERSION. The verbs of 1.1.0, GC and STATUS, are not served: nodelet's own
// configuration, which is of version 1.0.0, keeps the runtime from calling them.
const versionText = `{"cniVersion":"1.0.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0"]}` + "\n"

// Limits of messages on the socket, in bytes.
const (
	MaxRequest = 4 << 20
	maxAnswer  = 4 << 20
)

// timeout is the time limit of a call in seconds; each plugin that the agent runs has a shorter one.
const timeout = 600

// Request is a call of the plugin.
type Request struct {
	Command, ContainerID, NetNS, IfName, Args string // CNI_…
	// Config is the standard input: the configuration of the network.
	Config string
	// Parent is the process ID of the caller: the runtime.
	Parent string
}

// fields returns the parts of a request in the order in which they are sent.
func (r *Request) fields() []*string {
	return []*string{&r.Command, &r.ContainerID, &r.NetNS, &r.IfName, &r.Args, &r.Config, &r.Parent}
}

// Encode returns a request as its length, then each field preceded by its length. Lengths are 4 bytes, big-endian.
func (r *Request) Encode() []byte {
	body := make([]byte, 4, 4096)
	for _, f := range r.fields() {
		body = append(appendLength(body, len(*f)), *f...)
	}
	copy(body, appendLength(nil, len(body)-4))
	return body
}

// Decode parses what Encode has written after the first length, and reports whether it is valid.
func (r *Request) Decode(body []byte) bool {
	for _, f := range r.fields() {
		if len(body) < 4 {
			return false
		}
		n := Length(body)
		if body = body[4:]; n > len(body) {
			return false
		}
		*f, body = string(body[:n]), body[n:]
	}
	return len(body) == 0
}

func appendLength(b []byte, n int) []byte {
	return append(b, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

// Length decodes a length.
func Length(b []byte) int { return int(b[0])<<24 | int(b[1])<<16 | int(b[2])<<8 | int(b[3]) }

// First bytes of an answer, which are exit codes as well. The rest is for standard output: a result or an error.
const (
	Done   = 0
	Failed = 1
)

var pending *Request

// Pending returns the call that is left to main; nil if the program was not started as a plugin.
func Pending() *Request { return pending }

func init() {
	if len(os.Args) == 0 || base(os.Args[0]) != Name {
		return
	}
	if r, code := quick(); code >= 0 {
		os.Exit(code)
	} else {
		pending = r
	}
}

// quick handles a call. Exit code -1 leaves it to main.
func quick() (r *Request, code int) {
	r = &Request{
		Command:     os.Getenv("CNI_COMMAND"),
		ContainerID: os.Getenv("CNI_CONTAINERID"),
		NetNS:       os.Getenv("CNI_NETNS"),
		IfName:      os.Getenv("CNI_IFNAME"),
		Args:        os.Getenv("CNI_ARGS"),
		Parent:      decimal(os.Getppid()),
	}
	if r.Command == "VERSION" {
		_, _ = os.Stdout.WriteString(versionText)
		return r, 0
	}
	r.Config = string(readStdin())
	socket := Socket(r.Config)
	if socket == "" {
		return r, -1
	}
	answer := Ask(socket, r)
	if len(answer) == 0 {
		return r, -1
	}
	if _, err := os.Stdout.Write(answer[1:]); err != nil {
		return r, Failed
	}
	return r, int(answer[0])
}

// Ask sends a request to the agent and returns its answer, or nothing. The connection stays open until then: the agent
// undoes an ADD when the connection closes.
func Ask(socket string, r *Request) []byte {
	request := r.Encode()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	if syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}) != nil {
		return nil
	}
	_ = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Sec: timeout})
	for len(request) > 0 {
		n, err := syscall.SendmsgN(fd, request, nil, nil, syscall.MSG_NOSIGNAL)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return nil
		}
		request = request[n:]
	}
	head := readFull(fd, 4)
	if len(head) < 4 || Length(head) > maxAnswer {
		return nil
	}
	return readFull(fd, Length(head))
}

// readFull reads exactly n bytes, or returns nothing.
func readFull(fd, n int) []byte {
	b := make([]byte, n)
	for have := 0; have < n; {
		got, err := syscall.Read(fd, b[have:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil || got == 0 {
			return nil
		}
		have += got
	}
	return b
}

// readStdin reads standard input until its end, or somewhat more than MaxRequest.
func readStdin() []byte {
	var all []byte
	b := make([]byte, 64<<10)
	for len(all) <= MaxRequest {
		n, err := syscall.Read(syscall.Stdin, b)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		all = append(all, b[:n]...)
	}
	return all
}

func base(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[i+1:]
		}
	}
	return path
}

func decimal(n int) string {
	if n < 10 {
		return string(rune('0' + max(n, 0)))
	}
	return decimal(n/10) + string(rune('0'+n%10))
}
