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
)

// keys selects the keys of an object that become files: the items, or all if there are none.
type keys struct {
	name     string
	items    []corev1.KeyToPath
	optional *bool // neither the object nor an item's key has to be there
}

func (c *content) configMap(ctx context.Context, k keys) (payload, error) {
	cm, err := c.objects.ConfigMap(ctx, c.Pod.Namespace, k.name)
	if err != nil {
		return k.without("configmap", err)
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	maps.Copy(data, cm.BinaryData)
	for key, value := range cm.Data {
		data[key] = c.bytes(value)
	}
	return c.files(k, data, func(key string) error {
		return fmt.Errorf("configmap references non-existent config key: %s", key)
	})
}

func (c *content) secret(ctx context.Context, k keys) (payload, error) {
	secret, err := c.objects.Secret(ctx, c.Pod.Namespace, k.name)
	if err != nil {
		return k.without("secret", err)
	}
	return c.files(k, secret.Data, func(key string) error {
		return fmt.Errorf("references non-existent secret key: %s", key)
	})
}

// without returns the content for an object that could not be read: none if the object does not exist and is optional.
func (k keys) without(kind string, err error) (payload, error) {
	switch {
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("get %s %q: %w", kind, k.name, err)
	case ptr.Deref(k.optional, false):
		return payload{}, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource(kind), k.name)
}

func (c *content) files(k keys, data map[string][]byte, missing func(key string) error) (payload, error) {
	files := payload{}
	if len(k.items) == 0 {
		var errs []error
		for key, value := range data {
			errs = append(errs, files.set(key, c.defaults.file(value, nil, nil)))
		}
		return files, errors.Join(errs...)
	}
	for _, item := range k.items {
		value, ok := data[item.Key]
		if !ok {
			if ptr.Deref(k.optional, false) {
				continue
			}
			return nil, missing(item.Key)
		}
		if err := files.set(item.Path, c.defaults.file(value, item.Mode, item.User)); err != nil {
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
