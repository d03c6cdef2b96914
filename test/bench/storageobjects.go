package main

import (
	"context"
	"crypto/rand"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/test/csi/fake"
)

// storageObjects makes all that the pods of the storage benchmark use. It goes with the testbed.
func (b *volumeRun) storageObjects(ctx context.Context, driver *fake.Driver) error {
	no := false
	if err := post(ctx, b.api.Storage, "", "csidrivers", &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: storageDriver},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: &no},
	}); err != nil {
		return err
	}
	for _, pod := range b.podsWith(objectPods, b.objectVolumes) {
		for i := range pod.Spec.Volumes {
			if err := b.postObject(ctx, &pod.Spec.Volumes[i]); err != nil {
				return err
			}
		}
	}
	for i := range claimPods {
		if err := b.postClaim(ctx, driver, claimName(i)); err != nil {
			return err
		}
	}
	return nil
}

func (b *volumeRun) postObject(ctx context.Context, v *corev1.Volume) error {
	meta := metav1.ObjectMeta{Name: v.Name, Namespace: namespace}
	text := strings.Repeat(rand.Text(), 20) // about half a KiB
	if v.ConfigMap != nil {
		return post(ctx, b.api.Core, namespace, "configmaps", &corev1.ConfigMap{
			ObjectMeta: meta,
			Data:       map[string]string{"a": text, "b": text},
		})
	}
	return post(ctx, b.api.Core, namespace, "secrets", &corev1.Secret{
		ObjectMeta: meta,
		StringData: map[string]string{"a": text, "b": text},
	})
}

// postClaim makes a volume, and a PersistentVolume and a claim of the same name for it, which the control plane binds.
func (b *volumeRun) postClaim(ctx context.Context, driver *fake.Driver, name string) error {
	mode := csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	made, err := driver.CreateVolume(ctx, &csipb.CreateVolumeRequest{
		Name: name,
		VolumeCapabilities: []*csipb.VolumeCapability{{
			AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
			AccessMode: &csipb.VolumeCapability_AccessMode{Mode: mode}}},
	})
	if err != nil {
		return err
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	class := "manual"
	if err := post(ctx, b.api.Core, "", "persistentvolumes", &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{Capacity: size, AccessModes: modes, StorageClassName: class,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: namespace, Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: storageDriver,
				VolumeHandle: made.Volume.VolumeId}}},
	}); err != nil {
		return err
	}
	return post(ctx, b.api.Core, namespace, "persistentvolumeclaims", &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes, StorageClassName: &class, VolumeName: name,
			Resources: corev1.VolumeResourceRequirements{Requests: size}}})
}

func post(ctx context.Context, api rest.Interface, namespace, kind string, object runtime.Object) error {
	return api.Post().NamespaceIfScoped(namespace, namespace != "").Resource(kind).Body(object).Do(ctx).Error()
}
