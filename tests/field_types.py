"""One type a field, whatever record it is on: what a table of all records, or a schema of them, relies on."""

from __future__ import annotations

NUMBER, TEXT, FLAG, OBJECT, LIST = "number", "text", "flag", "object", "list"

_NAMES = {
    NUMBER: """
        time elapsed seq session rank global_step epoch train_loss train_loss_mean train_loss_min train_loss_max
        steps_folded lr grad_norm samples_per_sec sec_per_step gpu_mem_allocated gpu_mem_reserved cpu_mem_rss_mb
        gpu_util
        learning_rate batch_size gradient_accumulation_steps effective_batch_size max_steps first_step warmup_steps
        max_grad_norm seed resumed_from_step world_size lora_rank lora_alpha lora_dropout lora_conv_rank lora_conv_alpha
        model_total_params model_trainable_params memory_gb pid process_started
        start duration age bytes seconds records records_lost telemetry_errors cpu_mem_peak_mb errors_total
        start_step end_step noticed_step resolved_step count repeats confidence began_in_session old new requested
        from_seq to_seq attempts tells_of from_step to_step written dropped reward advantage
        optimizer_step optimizer_states optimizer_lr moment1_norm moment2_norm weights_norm buffers_norm
        scheduler_step scheduler_lr scaler_scale data_position accumulation
        cpu_percent process_cpu_percent ram_percent ram_used_mb swap_used_mb disk_free_gb process_threads
    """,
    TEXT: """
        event run_name run_id session_tag perf_tag name id parent_id span span_id clock thread kept
        kind severity metric state message status reason source setting checkpoint_path
        prompt completion chosen rejected at checkpoint rng_hash rng_torch rng_cuda rng_numpy rng_python
        weights_dtype
        lora_type model_name model_name_or_path model_architecture architecture optimizer scheduler dtype
        noise_scheduler
        host os python boot_id receiver service occasion type module doing caught_by fingerprint
    """,
    FLAG: "nan_inf_detected loss_jump is_best unfinished gradient_checkpointing",
    OBJECT: "attributes error evidence span_times non_finite unencodable packages cpu git memory knobs",
    LIST: """
        spans open_spans frames output stacks causes advice remedies actions cut accelerators command_line
        lora_target_modules lora_ignore_modules errors stack
    """,
}
TYPE_OF = {name: kind for kind, names in _NAMES.items() for name in names.split()}
"""What the logger itself writes under each of these names."""

_PREFIXES = ("time/", "device_time/", "ledger/", "profiling/", "gpu/")
"""Names that begin so are numbers."""


def kind_of(value: object) -> str | None:
    """Return what kind of value it is; None for null, which any field may be."""
    if value is None:
        return None
    if isinstance(value, bool):
        return FLAG
    if isinstance(value, (int, float)):
        return NUMBER
    if isinstance(value, str):
        return TEXT
    return OBJECT if isinstance(value, dict) else LIST


def wrong_types(records):
    """Return the fields of ours that are of another kind than elsewhere, as event, name and kind."""
    wrong = set()
    for record in records:
        for name, value in record.items():
            expected = NUMBER if name.startswith(_PREFIXES) else TYPE_OF.get(name)
            found = kind_of(value)
            if expected is not None and found not in (None, expected):
                wrong.add((record.get("event"), name, found))
    return sorted(wrong)
