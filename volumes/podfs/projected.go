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

func (v *FS) mountProjected(
	ctx context.Context, r Request, s *corev1.ProjectedVolumeSource, o Objects,
) (Mounted, error) {
	perSource, err := v.projectedObjects(ctx, r, s, o)
	if err != nil {
		return Mounted{}, err
	}
	// Certificates come after all objects, and tokens last: while an object is missing, each retry would request new ones
	// for nothing.
	current := v.openCurrent(r)
	if current != nil {
		defer current.Close()
	}
	renew, err := projectedCertificates(ctx, r, s, o, current, perSource)
	if err != nil {
		return Mounted{}, err
	}
	refresh, err := v.projectedTokens(ctx, r, s, o, current, perSource)
	if err != nil {
		return Mounted{}, err
	}
	files := payload{}
	for _, p := range perSource {
		maps.Copy(files, p) // a later source wins
	}
	m, err := v.show(ctx, r, pluginname.Projected, files)
	m.RefreshAt = earlier(refresh, renew)
	return m, err
}

// earlier returns the earlier of two times. A zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// projectedObjects adds the files of all sources but certificates and tokens.
func (v *FS) projectedObjects(
	ctx context.Context, r Request, s *corev1.ProjectedVolumeSource, o Objects,
) ([]payload, error) {
	perSource, d := make([]payload, len(s.Sources)), defaultsOf(s.DefaultMode, s.DefaultUser)
	var errs []error
	for i, source := range s.Sources {
		var err error
		switch {
		case source.Secret != nil:
			p := source.Secret
			perSource[i], err = secretFiles(ctx, o, r.Pod.Namespace, keysOf(p.Name, p.Items, d, p.Optional))
		case source.ConfigMap != nil:
			p := source.ConfigMap
			perSource[i], err = configMapFiles(ctx, o, r.Pod.Namespace, keysOf(p.Name, p.Items, d, p.Optional))
		case source.DownwardAPI != nil:
			perSource[i], err = downwardFiles(r, source.DownwardAPI.Items, d)
		case source.ClusterTrustBundle != nil:
			perSource[i], err = bundleFiles(ctx, r, source.ClusterTrustBundle, o, d)
			err = inSource(i, "clusterTrustBundle", err)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return perSource, utilerrors.NewAggregate(errs)
}

// projectedTokens adds the files of the token sources, and returns when the first token is due.
func (v *FS) projectedTokens(
	ctx context.Context, r Request, s *corev1.ProjectedVolumeSource, o Objects, current *os.File, perSource []payload,
) (refresh time.Time, err error) {
	var errs []error
	d := defaultsOf(s.DefaultMode, s.DefaultUser)
	for i, source := range s.Sources {
		if source.ServiceAccountToken == nil {
			continue
		}
		token, due, err := v.token(ctx, r, source.ServiceAccountToken, o, current)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		refresh = earlier(refresh, due)
		perSource[i] = payload{}
		f := ownFile(r.Pod, []byte(token), d, source.ServiceAccountToken.User)
		if err := perSource[i].set(source.ServiceAccountToken.Path, f); err != nil {
			errs = append(errs, err)
		}
	}
	return refresh, utilerrors.NewAggregate(errs)
}

// ownFile makes a token, a certificate or a trust bundle a file of the user that the source or the volume names, or as
// which all containers run; no other user can read it. With an fsGroup the group may read it, too (the whole volume
// gets 0640).
func ownFile(pod *corev1.Pod, data []byte, d defaults, user *int64) file {
	f := d.file(data, nil, cmp.Or(user, d.user, singleUser(pod)))
	if sc := pod.Spec.SecurityContext; f.uid != nil || sc != nil && sc.FSGroup != nil {
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
