package podfs

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/kube/pluginname"
)

func (v *FS) mountConfigMap(
	ctx context.Context, r Request, s *corev1.ConfigMapVolumeSource, o Objects,
) (Mounted, error) {
	files, err := configMapFiles(ctx, o, r.Pod.Namespace, keysOf(s.Name, s.Items, s.DefaultMode, s.Optional))
	if err != nil {
		return Mounted{}, err
	}
	return v.show(ctx, r, pluginname.ConfigMap, files)
}

func (v *FS) mountSecret(
	ctx context.Context, r Request, s *corev1.SecretVolumeSource, o Objects,
) (Mounted, error) {
	files, err := secretFiles(ctx, o, r.Pod.Namespace, keysOf(s.SecretName, s.Items, s.DefaultMode, s.Optional))
	if err != nil {
		return Mounted{}, err
	}
	return v.show(ctx, r, pluginname.Secret, files)
}

// keys selects the keys of an object that become files: the items, or all if there are none.
type keys struct {
	name     string
	items    []corev1.KeyToPath
	mode     uint32
	optional bool // neither the object nor an item's key has to be there
}

func keysOf(name string, items []corev1.KeyToPath, defaultMode *int32, optional *bool) keys {
	return keys{name: name, items: items, mode: fileMode(defaultMode), optional: ptr.Deref(optional, false)}
}

func configMapFiles(ctx context.Context, o Objects, namespace string, k keys) (payload, error) {
	cm, err := o.ConfigMap(ctx, namespace, k.name)
	if err != nil {
		return k.without("configmap", err)
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	maps.Copy(data, cm.BinaryData)
	for key, value := range cm.Data {
		data[key] = []byte(value)
	}
	return k.files(data, func(key string) error {
		return fmt.Errorf("configmap references non-existent config key: %s", key)
	})
}

func secretFiles(ctx context.Context, o Objects, namespace string, k keys) (payload, error) {
	secret, err := o.Secret(ctx, namespace, k.name)
	if err != nil {
		return k.without("secret", err)
	}
	return k.files(secret.Data, func(key string) error {
		return fmt.Errorf("references non-existent secret key: %s", key)
	})
}

// without returns the content for an object that could not be read: none if the object does not exist and is optional.
func (k keys) without(kind string, err error) (payload, error) {
	switch {
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("get %s %q: %w", kind, k.name, err)
	case k.optional:
		return payload{}, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource(kind), k.name)
}

func (k keys) files(data map[string][]byte, missing func(key string) error) (payload, error) {
	files := payload{}
	if len(k.items) == 0 {
		var errs []error
		for key, value := range data {
			errs = append(errs, files.set(key, file{data: value, mode: k.mode}))
		}
		return files, errors.Join(errs...)
	}
	for _, item := range k.items {
		value, ok := data[item.Key]
		if !ok {
			if k.optional {
				continue
			}
			return nil, missing(item.Key)
		}
		f := file{data: value, mode: k.mode}
		if item.Mode != nil {
			f.mode = uint32(*item.Mode)
		}
		if err := files.set(item.Path, f); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// fileMode returns a volume's defaultMode. The API server sets it; a manifest may lack it.
func fileMode(mode *int32) uint32 {
	if mode == nil {
		return uint32(corev1.ConfigMapVolumeSourceDefaultMode)
	}
	return uint32(*mode)
}
