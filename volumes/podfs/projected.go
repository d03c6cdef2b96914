package podfs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/nodelet/nodelet/kube/pluginname"
)

// content makes the files of one volume.
type content struct {
	*FS
	Request
	objects  Objects
	defaults defaults
	nested   []string // the mount points of other volumes in it
	current  *os.File // the volume as its containers see it; nil if it is not there yet
	made     payload  // the files of a projected volume that the steps so far have made
	values   map[string][]byte
}

// bytes returns the bytes of a value, which must not be changed: one copy for all files that show it. A pod of a
// megabyte can name a value of a megabyte ten thousand times.
func (c *content) bytes(value string) []byte {
	data, ok := c.values[value]
	if !ok {
		data = []byte(value)
		c.values[value] = data
	}
	return data
}

// never is the time to make files again that do not change.
var never time.Time

// mountContent mounts a volume whose files come from objects.
func (v *FS) mountContent(ctx context.Context, r Request, o Objects) (Mounted, error) {
	nested, err := nestedMountPoints(r.Volume.Name, &r.Pod.Spec)
	if err != nil {
		return Mounted{}, err
	}
	c := &content{FS: v, Request: r, objects: o, nested: nested, values: map[string][]byte{}}
	plugin, files, refresh, err := c.make(ctx)
	if err != nil {
		return Mounted{}, err
	}
	m, err := v.show(ctx, r, plugin, files, nested)
	m.RefreshAt = refresh
	return m, err
}

// make makes the files, and returns the plugin of the volume and when to do it again.
func (c *content) make(ctx context.Context) (plugin string, files payload, refresh time.Time, err error) {
	switch s := c.Volume.VolumeSource; {
	case s.ConfigMap != nil:
		c.defaults = defaultsOf(s.ConfigMap.DefaultMode, s.ConfigMap.DefaultUser)
		files, err = c.configMap(ctx, keys{s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional})
		return pluginname.ConfigMap, files, never, err
	case s.Secret != nil:
		c.defaults = defaultsOf(s.Secret.DefaultMode, s.Secret.DefaultUser)
		files, err = c.secret(ctx, keys{s.Secret.SecretName, s.Secret.Items, s.Secret.Optional})
		return pluginname.Secret, files, never, err
	case s.DownwardAPI != nil:
		c.defaults = defaultsOf(s.DownwardAPI.DefaultMode, s.DownwardAPI.DefaultUser)
		files, err = c.downward(s.DownwardAPI.Items)
		return pluginname.DownwardAPI, files, never, err
	default:
		c.defaults = defaultsOf(s.Projected.DefaultMode, s.Projected.DefaultUser)
		files, refresh, err = c.projected(ctx, s.Projected.Sources)
		return pluginname.Projected, files, refresh, err
	}
}

// projected makes the files of all sources, and returns when to do it again. Certificates come after all objects, and
// tokens last: while an object is missing, each retry would request new ones for nothing.
func (c *content) projected(ctx context.Context, sources []corev1.VolumeProjection) (payload, time.Time, error) {
	if c.current = c.openCurrent(c.Request); c.current != nil {
		defer c.current.Close()
	}
	bySource, refresh := make([]payload, len(sources)), never
	for _, step := range []func(context.Context, int, *corev1.VolumeProjection) (payload, time.Time, error){
		c.object, c.certificate, c.token,
	} {
		var errs []error
		for i := range sources {
			files, due, err := step(ctx, i, &sources[i])
			switch {
			case err != nil:
				errs = append(errs, err)
			case files != nil:
				bySource[i], refresh = files, earlier(refresh, due)
			}
		}
		if len(errs) > 0 {
			return nil, never, utilerrors.NewAggregate(errs)
		}
		c.made = payload{}
		for _, files := range bySource {
			maps.Copy(c.made, files) // a later source wins
		}
	}
	return c.made, refresh, nil
}

// earlier returns the earlier of two times, either of which may be never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// object makes the files of a source that is neither a certificate nor a token.
func (c *content) object(
	ctx context.Context, i int, s *corev1.VolumeProjection,
) (files payload, _ time.Time, err error) {
	switch {
	case s.Secret != nil:
		files, err = c.secret(ctx, keys{s.Secret.Name, s.Secret.Items, s.Secret.Optional})
	case s.ConfigMap != nil:
		files, err = c.configMap(ctx, keys{s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional})
	case s.DownwardAPI != nil:
		files, err = c.downward(s.DownwardAPI.Items)
	case s.ClusterTrustBundle != nil:
		files, err = c.bundle(ctx, s.ClusterTrustBundle)
		err = inSource(i, "clusterTrustBundle", err)
	}
	return files, never, err
}

// ownFile makes a token, a certificate or a trust bundle a file of the user that the source or the volume names, or as
// which all containers run; no other user can read it. With an fsGroup the group may read it, too (the whole volume
// gets 0640).
func (c *content) ownFile(data []byte, user *int64) file {
	f := c.defaults.file(data, nil, cmp.Or(user, c.defaults.user, singleUser(c.Pod)))
	if sc := c.Pod.Spec.SecurityContext; f.uid != nil || sc != nil && sc.FSGroup != nil {
		f.mode = 0o600
	}
	return f
}

// inSource adds the source of a projected volume to an error.
func inSource(index int, kind string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("sources[%d].%s: %w", index, kind, err)
}

// openCurrent opens the volume on disk. It returns nil if there is none yet.
func (v *FS) openCurrent(r Request) *os.File {
	pod, err := v.openPod(r.Pod.UID)
	if err != nil {
		return nil
	}
	defer pod.Close()
	dir, err := openDir(pod, OnDisk{Plugin: pluginname.Projected, Name: r.Volume.Name}.path())
	if err != nil {
		return nil
	}
	return dir
}
