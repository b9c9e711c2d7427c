{{ config(materialized='incremental', incremental_strategy='append', unique_key=none) }}
select id, customer, amount, updated_at from {{ ref('orders') }}
{% if is_incremental() %}
where updated_at > (select max(updated_at) from {{ this }})
{% endif %}
