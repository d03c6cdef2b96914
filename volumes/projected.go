package volumes

import (
	"context"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

func (v *Volumes) mountProjected(
	ctx context.Context, r Request, s *corev1.ProjectedVolumeSource, o Objects,
) (Mounted, error) {
	perSource, err := v.projectedObjects(ctx, r, s, o)
	if err != nil {
		return Mounted{}, err
	}
	// Tokens come last: while another source is missing, each retry would request new ones for nothing.
	refresh, err := v.projectedTokens(ctx, r, s, o, perSource)
	if err != nil {
		return Mounted{}, err
	}
	files := payload{}
	for _, p := range perSource {
		files.merge(p) // a later source wins
	}
	m, err := v.show(ctx, r, pluginProjected, files)
	m.RefreshAt = refresh
	return m, err
}

// projectedObjects gives the files of each source but tokens.
func (v *Volumes) projectedObjects(
	ctx context.Context, r Request, s *corev1.ProjectedVolumeSource, o Objects,
) ([]payload, error) {
	perSource := make([]payload, len(s.Sources))
	var errs []error
	for i, source := range s.Sources {
		var err error
		switch {
		case source.Secret != nil:
			p := source.Secret
			perSource[i], err = secretFiles(ctx, o, r.Pod.Namespace, keysOf(p.Name, p.Items, s.DefaultMode, p.Optional))
		case source.ConfigMap != nil:
			p := source.ConfigMap
			perSource[i], err = configMapFiles(ctx, o, r.Pod.Namespace, keysOf(p.Name, p.Items, s.DefaultMode, p.Optional))
		case source.DownwardAPI != nil:
			perSource[i], err = downwardFiles(r, source.DownwardAPI.Items, fileMode(s.DefaultMode))
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return perSource, utilerrors.NewAggregate(errs)
}

// projectedTokens adds the files of the token sources, and says when the first token is due.
func (v *Volumes) projectedTokens(
	ctx context.Context, r Request, s *corev1.ProjectedVolumeSource, o Objects, perSource []payload,
) (refresh time.Time, err error) {
	current := v.openCurrent(r)
	if current != nil {
		defer current.Close()
	}
	var errs []error
	for i, source := range s.Sources {
		if source.ServiceAccountToken == nil {
			continue
		}
		token, due, err := v.token(ctx, r, source.ServiceAccountToken, o, current)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if refresh.IsZero() || due.Before(refresh) {
			refresh = due
		}
		perSource[i] = payload{}
		f := tokenFile(r.Pod, token, fileMode(s.DefaultMode))
		if err := perSource[i].set(source.ServiceAccountToken.Path, f); err != nil {
			errs = append(errs, err)
		}
	}
	return refresh, utilerrors.NewAggregate(errs)
}

// tokenFile: the user whom all containers run as owns the token, and nobody else reads it. With an fsGroup its
// group may read it, too (it is given 0640 with the rest of the volume).
func tokenFile(pod *corev1.Pod, token string, mode uint32) file {
	user := singleUser(pod)
	if sc := pod.Spec.SecurityContext; user != nil || sc != nil && sc.FSGroup != nil {
		mode = 0o600
	}
	return file{data: []byte(token), mode: mode, uid: user}
}

// openCurrent opens the volume as it is on disk, or returns nil when there is none yet.
func (v *Volumes) openCurrent(r Request) *os.File {
	pod, err := v.openPod(r.Pod.UID)
	if err != nil {
		return nil
	}
	defer pod.Close()
	dir, err := openDir(pod, OnDisk{Plugin: pluginProjected, Name: r.Volume.Name}.path())
	if err != nil {
		return nil
	}
	return dir
}
