package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// runtimeName is the name by which Docker calls this program as its container runtime.
const runtimeName = "runc-without-resource"

// missingCapability is a capability that Docker requests for privileged containers, also on machines that lack it.
const missingCapability = "CAP_SYS_RESOURCE"

// actAsRuntime removes the missing capability from the request and executes runc. It returns only if that fails.
func actAsRuntime(args []string) error {
	if err := shedCapability(args); err != nil {
		return err
	}
	runc := filepath.Join(filepath.Dir(os.Args[0]), "runc")
	return fmt.Errorf("execute %s: %w", runc, syscall.Exec(runc, append([]string{runc}, args...), os.Environ()))
}

// shedCapability removes the capability from the process that a call of runc starts, if it starts one.
func shedCapability(args []string) error {
	switch {
	case slices.Contains(args, "create") || slices.Contains(args, "run"):
		return rewrite(filepath.Join(option(args, "--bundle", "-b"), "config.json"), func(doc map[string]any) map[string]any {
			process, _ := doc["process"].(map[string]any)
			return process
		})
	case slices.Contains(args, "exec"):
		if file := option(args, "--process", "-p"); file != "" {
			return rewrite(file, func(doc map[string]any) map[string]any { return doc })
		}
	}
	return nil
}

// option returns the argument that follows one of the names.
func option(args []string, names ...string) string {
	for i, a := range args[:max(0, len(args)-1)] {
		if slices.Contains(names, a) {
			return args[i+1]
		}
	}
	return ""
}

// rewrite removes the missing capability from a process in a JSON file. It keeps numbers as they are written.
func rewrite(file string, find func(map[string]any) map[string]any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var doc map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	process := find(doc)
	if process == nil {
		return errors.New(file + " describes no process")
	}
	sets, _ := process["capabilities"].(map[string]any)
	for name, set := range sets {
		if list, ok := set.([]any); ok {
			sets[name] = slices.DeleteFunc(list, func(c any) bool { return c == missingCapability })
		}
	}
	text, err = json.Marshal(doc)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}
