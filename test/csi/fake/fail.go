package fake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A failpoint is a file fail/<method> in the state directory: "WHAT" or "WHAT TIMES". WHAT is the name of a gRPC code
// ("Internal"), "hang" until the file is gone or the caller gives up, "busy" until the file is gone whatever the caller
// does, or "die" to end the process; with "after:" before it, it happens when the call has had its effect. Without
// TIMES it stays until the file is removed.

// Fail sets a failpoint; times 0 is until Heal.
func Fail(state, method, what string, times int) error {
	text := what
	if times > 0 {
		text += " " + strconv.Itoa(times)
	}
	path := filepath.Join(state, "fail", method)
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Heal removes a failpoint.
func Heal(state, method string) error {
	if err := os.Remove(filepath.Join(state, "fail", method)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// intercept notes calls, refuses a second one for a volume that is being worked on, and lets failpoints act.
func (d *Driver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (
	any, error) {
	method := path.Base(info.FullMethod)
	id := volumeOf(req)
	if id != "" {
		if !d.begin(method, id, flagsOf(req)) {
			return nil, status.Errorf(codes.Aborted, "an operation on volume %s is already in progress", id)
		}
		defer d.end(id)
	}
	what, after := d.failure(method)
	if !after {
		if err := d.act(ctx, method, what); err != nil {
			return nil, err
		}
	}
	resp, err := handler(ctx, req)
	if err != nil || !after {
		return resp, err
	}
	if err := d.act(ctx, method, what); err != nil {
		return nil, err
	}
	return resp, nil
}

func volumeOf(req any) string {
	if r, ok := req.(interface{ GetVolumeId() string }); ok {
		return r.GetVolumeId()
	}
	return ""
}

func flagsOf(req any) []string {
	if r, ok := req.(interface {
		GetVolumeCapability() *csipb.VolumeCapability
	}); ok {
		return r.GetVolumeCapability().GetMount().GetMountFlags()
	}
	return nil
}

func (j *journal) begin(method, id string, flags []string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.busy[id] {
		j.refused++
		return false
	}
	j.busy[id] = true
	j.calls = append(j.calls, method+" "+id)
	j.flags[method+" "+id] = flags
	return true
}

func (j *journal) end(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.busy, id)
}

func (d *Driver) failpoint(method string) string { return filepath.Join(d.cfg.State, "fail", method) }

// failure takes one turn of a method's failpoint.
func (d *Driver) failure(method string) (what string, after bool) {
	text, err := os.ReadFile(d.failpoint(method))
	if err != nil {
		return "", false
	}
	what, times, limited := strings.Cut(strings.TrimSpace(string(text)), " ")
	if n, _ := strconv.Atoi(times); limited && n <= 1 {
		_ = Heal(d.cfg.State, method)
	} else if limited {
		_ = Fail(d.cfg.State, method, what, n-1)
	}
	return strings.CutPrefix(what, "after:")
}

func (d *Driver) act(ctx context.Context, method, what string) error {
	switch what {
	case "", "OK":
		return nil
	case "die":
		os.Exit(3)
	case "busy":
		return d.act(context.WithoutCancel(ctx), method, "hang")
	case "hang":
		for {
			select {
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			case <-time.After(20 * time.Millisecond):
			}
			if _, err := os.Stat(d.failpoint(method)); err != nil {
				return nil
			}
		}
	}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if code.String() == what {
			return status.Error(code, "as the test wants it")
		}
	}
	return fmt.Errorf("failpoint %s: %q is no code", method, what)
}
