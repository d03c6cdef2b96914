package podfs

import (
	"cmp"
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
	k := keysOf(s.Name, s.Items, defaultsOf(s.DefaultMode, s.DefaultUser), s.Optional)
	files, err := configMapFiles(ctx, o, r.Pod.Namespace, k)
	if err != nil {
		return Mounted{}, err
	}
	return v.show(ctx, r, pluginname.ConfigMap, files)
}

func (v *FS) mountSecret(
	ctx context.Context, r Request, s *corev1.SecretVolumeSource, o Objects,
) (Mounted, error) {
	k := keysOf(s.SecretName, s.Items, defaultsOf(s.DefaultMode, s.DefaultUser), s.Optional)
	files, err := secretFiles(ctx, o, r.Pod.Namespace, k)
	if err != nil {
		return Mounted{}, err
	}
	return v.show(ctx, r, pluginname.Secret, files)
}

// keys selects the keys of an object that become files: the items, or all if there are none.
type keys struct {
	name     string
	items    []corev1.KeyToPath
	defaults defaults
	optional bool // neither the object nor an item's key has to be there
}

func keysOf(name string, items []corev1.KeyToPath, d defaults, optional *bool) keys {
	return keys{name: name, items: items, defaults: d, optional: ptr.Deref(optional, false)}
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
			errs = append(errs, files.set(key, k.defaults.file(value, nil, nil)))
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
		if err := files.set(item.Path, k.defaults.file(value, item.Mode, item.User)); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// defaults are the mode and the owner of files whose items do not name them.
type defaults struct {
	mode uint32
	user *int64 // nil: root
}

// defaultsOf returns those of a volume. The API server sets defaultMode; a manifest may lack it.
func defaultsOf(mode *int32, user *int64) defaults {
	return defaults{uint32(ptr.Deref(mode, corev1.ConfigMapVolumeSourceDefaultMode)), user}
}

// file makes data a file with the mode and the owner of its item, where that names them.
func (d defaults) file(data []byte, mode *int32, user *int64) file {
	f := file{data: data, mode: d.mode, uid: cmp.Or(user, d.user)}
	if mode != nil {
		f.mode = uint32(*mode)
	}
	return f
}
