package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// shownFlags returns the values of all flags by name, as /flagz shows them: what was given, or the default. Values of
// headers, which may be secret, and passwords are left out.
func shownFlags(given flagValues) map[string]string {
	all := map[string]string{}
	for _, k := range settingTable {
		if k.flag == "" {
			continue
		}
		value, written := given[k.flag]
		headers, secret := value.(map[string][]string)
		switch {
		case secret:
			all[k.flag] = fmt.Sprintf("%d headers, masked", len(headers))
		case written && k.kind == kPassword:
			all[k.flag] = "masked"
		case written && k.kind == kURL:
			all[k.flag] = WithoutPassword(given.text(k.flag))
		case !written && k.kind == kList && (k.field == "" || textAt(defaults(), k.field) == "null"):
			all[k.flag] = "[]"
		case written:
			all[k.flag] = flagText(value)
		case k.field != "":
			all[k.flag] = flagText(json.RawMessage(textAt(defaults(), k.field)))
		default:
			all[k.flag] = k.def
		}
	}
	return all
}

// flagText returns a value as a flag set prints it: lists as [a,b], maps as k=v,k=v.
func flagText(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	var plain any
	if err := json.Unmarshal(text, &plain); err != nil {
		return string(text)
	}
	return plainText(plain)
}

func plainText(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = plainText(v[i])
		}
		return "[" + strings.Join(parts, ",") + "]"
	case map[string]any:
		var parts []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, key+"="+plainText(v[key]))
		}
		return strings.Join(parts, ",")
	case float64:
		return fmt.Sprintf("%.0f", v) // all numbers of flags are whole
	}
	return fmt.Sprint(value)
}
